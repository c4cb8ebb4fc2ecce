#include "emulator/wgmma.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "emulator/proxies.hpp"

namespace ring_attention::emulator {
namespace {

constexpr unsigned rows = 64, most_results = 128;

// The matrix of a wgmma descriptor. `along` is the index of the sum, `across` is the row of a or the column of b.
struct SharedMatrix {
  Half type;
  unsigned start, columns_on, stride;
  const UnfencedStores& unfenced = unfenced_stores();

  SharedMatrix(Half of_type, unsigned long long descriptor)
      : type(of_type),
        start(static_cast<unsigned>(descriptor & 0x3fffU) << 4U),
        columns_on(static_cast<unsigned>(descriptor >> 16U & 0x3fffU) << 4U),
        stride(static_cast<unsigned>(descriptor >> 32U & 0x3fffU) << 4U) {
    if (descriptor >> 62U != 1 || (descriptor >> 49U & 7U) != 0)
      fail("a matrix does not have the 128-byte swizzle");
  }
  // Reads `count` rows or columns: element (across, along) to to[across * of_across + along * of_along].
  void read(float* to, unsigned count, unsigned of_across, unsigned of_along, bool sum_along_rows) const {
    if (sum_along_rows) {
      for (unsigned across = 0; across < count; ++across)
        for (unsigned along = 0; along < depth; along += 8)
          read_8(to + across * of_across + along * of_along, of_along,
                 start + across / 8 * stride + across % 8 * 128 + along * 2);
    } else {
      for (unsigned along = 0; along < depth; ++along)
        for (unsigned across = 0; across < count; across += 8)
          read_8(to + across * of_across + along * of_along, of_across,
                 start + across / 64 * columns_on + across % 64 * 2 + along / 8 * stride + along % 8 * 128);
    }
  }

 private:
  void read_8(float* to, unsigned step, unsigned address) const {
    const unsigned at = swizzled(address);
    unsigned short bits[8];
    std::memcpy(bits, shared_at(at, 16, 16), 16);
    for (unsigned i = 0; i < 8; ++i) to[i * step] = widened(type, bits[i]);
    if (!unfenced.in(at, 16)) return;
    for (unsigned i = 0; i < 8; ++i)
      if (unfenced.in(at + 2 * i, 2)) to[i * step] = std::numeric_limits<float>::quiet_NaN();
  }
};

void read_registers(const Product& product, float (&a)[rows][depth]) {
  for (unsigned t = 0; t < warpgroup; ++t)
    for (unsigned i = 0; i < 4; ++i)
      for (unsigned which = 0; which < 2; ++which)
        a[t / 32 * 16 + t % 32 / 4 + i % 2 * 8][t % 4 * 2 + i / 2 * 8 + which] =
            widened(product.operands.type, product.registers[t][i] >> (16U * which) & 0xffffU);
}

// Calls use(results in d, results in registers) for each pair of results of a thread: it has pairs in two rows.
void for_pairs(const Product& product, float* d, unsigned columns, auto use) {
  for (unsigned t = 0; t < warpgroup; ++t)
    for (unsigned e = 0; e < product.operands.count; e += 2)
      use(d + (t / 32 * 16 + t % 32 / 4 + e % 4 / 2 * 8) * columns + e / 4 * 8 + t % 4 * 2, product.d[t] + e);
}

void compute(const Product& product) {
  static float a[rows][depth], b[depth * 2 * most_results], d[rows * 2 * most_results];
  const Operands& operands = product.operands;
  const unsigned columns = 2 * operands.count;
  if (operands.a_in_registers)
    read_registers(product, a);
  else
    SharedMatrix(operands.type, operands.a).read(a[0], rows, depth, 1, !operands.a_by_columns);
  SharedMatrix(operands.type, operands.b).read(b, columns, 1, columns, !operands.b_by_rows);
  if (operands.accumulate)
    for_pairs(product, d, columns,
              [](float* of_d, const float* of_thread) { std::memcpy(of_d, of_thread, 8); });
  else
    std::fill_n(d, rows * columns, 0.0F);
  add_product(d, a[0], b, rows, columns);
  for_pairs(product, d, columns,
            [](const float* of_d, float* of_thread) { std::memcpy(of_thread, of_d, 8); });
}

}  // namespace

Products& products_of_warpgroup() { return of_block<std::array<Products, 8>>()[thread() / warpgroup]; }

void call_product(const Operands& operands, float* d, const unsigned* registers) {
  const unsigned group = thread() / warpgroup, t = thread() % warpgroup;
  Products& products = products_of_warpgroup();
  if ((group + 1) * warpgroup > threads_of_running_block()) fail("a warpgroup is not complete");
  const std::size_t number = products.called[t]++ - products.started;
  if (number == products.called_by_some.size()) products.called_by_some.push_back({operands});
  Product& product = products.called_by_some[number];
  if (product.operands != operands) fail("the threads of a warpgroup disagree about a product");
  product.d[t] = d;
  product.registers[t] = registers;
  if (++product.arrived < warpgroup) return;
  start_work(group, [product] { compute(product); });
  products.called_by_some.pop_front();
  ++products.started;
  wake(products.waiting);
}

}  // namespace ring_attention::emulator
