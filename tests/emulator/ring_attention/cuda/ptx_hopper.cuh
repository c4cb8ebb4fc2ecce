// The emulator's src/ring_attention/cuda/ptx_hopper.cuh, written from the PTX ISA: matrix descriptors, the swizzle of
// TMA, the phases of mbarriers.
#pragma once

#include <array>
#include <map>

#include "ring_attention/cuda/ptx.cuh"
#include "ring_attention/cuda/tensor_map.cuh"

namespace ring_attention::emulator {

struct CountingBarrier {
  unsigned count = 0, arrived = 0, phase = 0;
  long bytes = 0;  // expected and not yet arrived
  Waiting waiting = {};

  void complete_phase() {
    if (arrived > count) fail("more threads arrive at an mbarrier than its count");
    if (arrived < count || bytes != 0) return;
    arrived = 0;
    ++phase;
    wake(waiting);
  }
};

constexpr unsigned warpgroup = 128;

// What all threads of a warpgroup pass to a wgmma: descriptors of the matrices in shared memory.
struct Operands {
  unsigned long long a, b;
  bool accumulate;
  friend bool operator==(const Operands&, const Operands&) = default;
};

// One wgmma.
struct Product {
  const std::type_info* what;
  Operands operands;
  unsigned arrived = 0;
  std::array<float*, warpgroup> d = {};
  std::array<const unsigned*, warpgroup> registers = {};  // of a
};

// The products of one warpgroup. A thread does not wait at a wgmma. The product starts when all threads have called it.
struct Products {
  std::deque<Product> called_by_some;
  std::size_t started = 0;
  std::array<std::size_t, warpgroup> called = {};           // by each thread
  std::array<std::vector<std::size_t>, warpgroup> commits;  // how many it had called
  Waiting waiting;                                          // for the start of a product
};

// The registers of each thread. At the start each thread has an equal part of the multiprocessor's 65536. All threads
// of a warpgroup change their number together.
struct Registers {
  int free = 0;  // of the block
  std::array<int, 8> held{at_start(), at_start(), at_start(), at_start(),
                          at_start(), at_start(), at_start(), at_start()};  // by a thread of each warpgroup

  static int at_start() {
    const dim3& threads = blockDim;
    return std::min(255, 65536 / static_cast<int>(threads.x * threads.y * threads.z)) / 8 * 8;
  }
  void resize(int count, const std::source_location& where) {
    together(128, count, [](const int* const* each) {
      for (unsigned t = 0; t < 128; ++t)
        if (*each[t] != *each[0]) fail("the threads of a warpgroup set different numbers of registers");
    });
    int& of_thread = held[thread() / 128];
    wait_until(where, [&] { return free >= 128 * (count - of_thread); });
    free -= 128 * (count - of_thread);  // nothing if another thread of the warpgroup was here
    of_thread = count;
    progress();
  }
};

struct HopperBlock {
  std::map<unsigned, CountingBarrier> barriers;
  std::array<Products, 8> products;
  Registers registers;
};

inline HopperBlock& hopper_block() { return of_block<HopperBlock>(); }

inline CountingBarrier& counting_barrier(unsigned address) {
  (void)shared_at(address, 8, 8);
  const auto at = hopper_block().barriers.find(address);
  if (at == hopper_block().barriers.end()) fail("an mbarrier was not initialised");
  return at->second;
}

// Bits 4-6 of an address are xored with bits 7-9.
inline unsigned swizzled(unsigned address) { return address ^ ((address >> 7U & 7U) << 4U); }

// The matrix of a wgmma descriptor. `along` is the index of the sum, `across` is the row of a or the column of b.
struct SharedMatrix {
  unsigned start, columns_on, stride;

  explicit SharedMatrix(unsigned long long descriptor)
      : start(static_cast<unsigned>(descriptor & 0x3fffU) << 4U),
        columns_on(static_cast<unsigned>(descriptor >> 16U & 0x3fffU) << 4U),
        stride(static_cast<unsigned>(descriptor >> 32U & 0x3fffU) << 4U) {
    if (descriptor >> 62U != 1 || (descriptor >> 49U & 7U) != 0)
      fail("a matrix does not have the 128-byte swizzle");
  }
  // Reads `count` rows or columns: element (across, along) to to[across * of_across + along * of_along].
  template <class T>
  void read(float* to, unsigned count, unsigned of_across, unsigned of_along, bool sum_along_rows) const {
    if (sum_along_rows) {
      for (unsigned across = 0; across < count; ++across)
        for (unsigned along = 0; along < 16; along += 8)
          read_8<T>(to + across * of_across + along * of_along, of_along,
                    start + across / 8 * stride + across % 8 * 128 + along * 2);
    } else {
      for (unsigned along = 0; along < 16; ++along)
        for (unsigned across = 0; across < count; across += 8)
          read_8<T>(
              to + across * of_across + along * of_along, of_across,
              start + across / 64 * columns_on + across % 64 * 2 + along / 8 * stride + along % 8 * 128);
    }
  }

 private:
  template <class T>
  static void read_8(float* to, unsigned step, unsigned address) {
    unsigned short bits[8];
    std::memcpy(bits, shared_at(swizzled(address), 16, 16), 16);
    const bool stale = unfenced_stores().in(swizzled(address), 16);
    for (unsigned i = 0; i < 8; ++i)
      to[i * step] = stale && unfenced_stores().in(swizzled(address) + 2 * i, 2)
                         ? std::numeric_limits<float>::quiet_NaN()
                         : widened<T>(bits[i]);
  }
};

// Computes a product with `count` results in each thread. read_a() fills a [64][16].
template <class T, int count, class ReadA>
void compute(const Product& product, bool b_by_rows, ReadA read_a) {
  constexpr unsigned n = 2 * count;
  static float A[64][16], B[16][n], D[64][n];
  read_a(A);
  SharedMatrix(product.operands.b).read<T>(B[0], n, 1, n, !b_by_rows);
  // A thread has pairs of results, in two rows.
  const auto for_pairs = [&](auto use) {
    for (unsigned t = 0; t < warpgroup; ++t)
      for (unsigned e = 0; e < count; e += 2)
        use(&D[t / 32 * 16 + t % 32 / 4 + e % 4 / 2 * 8][e / 4 * 8 + t % 4 * 2], product.d[t] + e);
  };
  if (product.operands.accumulate)
    for_pairs([](float* of_d, const float* of_thread) { std::copy_n(of_thread, 2, of_d); });
  else
    std::fill_n(D[0], 64 * n, 0.0F);
  add_product(D[0], A[0], B[0], 64, n);
  for_pairs([](const float* of_d, float* of_thread) { std::copy_n(of_d, 2, of_thread); });
}

// The running thread calls a product, with its own result d and perhaps a in registers. The last thread of the
// warpgroup starts it as asynchronous work: compute(product).
template <class Compute>
void call_product(const Operands& operands, float* d, const unsigned* registers, Compute compute) {
  const unsigned group = thread() / warpgroup, t = thread() % warpgroup;
  Products& products = hopper_block().products[group];
  if ((group + 1) * warpgroup > blockDim.x * blockDim.y * blockDim.z) fail("a warpgroup is not complete");
  const std::size_t number = products.called[t]++ - products.started;
  if (number == products.called_by_some.size())
    products.called_by_some.push_back({&typeid(Compute), operands});
  Product& product = products.called_by_some[number];
  if (*product.what != typeid(Compute) || product.operands != operands)
    fail("the threads of a warpgroup disagree about a product");
  product.d[t] = d;
  product.registers[t] = registers;
  if (++product.arrived < warpgroup) return;
  start_work(group, [product, compute] { compute(product); });
  products.called_by_some.pop_front();
  ++products.started;
  wake(products.waiting);
}

}  // namespace ring_attention::emulator

namespace ring_attention::cuda {

inline void mbarrier_init(unsigned barrier, unsigned count) {
  (void)emulator::shared_at(barrier, 8, 8);
  emulator::hopper_block().barriers[barrier] = {count};
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(unsigned barrier) {
  emulator::CountingBarrier& state = emulator::counting_barrier(barrier);
  ++state.arrived;
  state.complete_phase();
}
// A missing synchronization of the lanes is not found: other collective instructions order them, too.
inline void mbarrier_arrive_for_warp(unsigned barrier, int lane) {
  (void)emulator::ballot(true);
  if (lane == 0) mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes) {
  emulator::counting_barrier(barrier).bytes += bytes;
  mbarrier_arrive(barrier);
}
inline void mbarrier_wait(unsigned barrier, unsigned parity,
                          const std::source_location& where = std::source_location::current()) {
  if (emulator::ignored(where)) return;
  emulator::CountingBarrier& state = emulator::counting_barrier(barrier);
  while (state.phase % 2 == parity) emulator::wait_in(state.waiting, where);
}

inline void tma_load_3d(unsigned to, const TensorMap& map, int column, int row, int matrix,
                        unsigned barrier) {
  if (to % 1024 != 0) emulator::fail("a TMA box does not start at a multiple of 1024 bytes");
  if (column % 8 != 0) emulator::fail("a TMA box does not start at a multiple of 16 bytes of device memory");
  (void)emulator::counting_barrier(barrier);
  emulator::start_work(emulator::tma, [=] {
    static constexpr unsigned short zeros[8] = {};
    for (int i = 0; i < map.box_rows; ++i)
      for (int j = 0; j < 64; j += 8) {  // column and map.dim are multiples of 8
        const bool inside =
            column + j < map.dim && row + i >= 0 && row + i < map.rows && matrix < map.matrices;
        const auto* const first = static_cast<const unsigned short*>(map.first);
        const auto address = to + static_cast<unsigned>(128 * i + 2 * j);
        emulator::copy_asynchronously(
            emulator::swizzled(address),
            inside ? first + (matrix * map.rows + row + i) * map.dim + column + j : zeros);
      }
    emulator::CountingBarrier& state = emulator::counting_barrier(barrier);
    state.bytes -= 128 * map.box_rows;
    state.complete_phase();
  });
}

inline void cp_async_bulk(unsigned to, const void* from, int bytes, unsigned barrier) {
  if (bytes % 16 != 0 || to % 16 != 0 || reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
    emulator::fail("cp.async.bulk: not a multiple of 16 bytes");
  (void)emulator::counting_barrier(barrier);
  emulator::start_work(emulator::tma, [=] {
    for (int i = 0; i < bytes; i += 16)
      emulator::copy_asynchronously(to + static_cast<unsigned>(i), static_cast<const char*>(from) + i);
    emulator::CountingBarrier& state = emulator::counting_barrier(barrier);
    state.bytes -= bytes;
    state.complete_phase();
  });
}

// The work of a thread is done in order. Its reads and its additions are one step.
inline void bulk_add(float* to, unsigned from, int bytes) {
  if (bytes % 16 != 0 || from % 16 != 0 || reinterpret_cast<std::uintptr_t>(to) % 16 != 0)
    emulator::fail("cp.reduce.async.bulk: not a multiple of 16 bytes");
  emulator::start_work(emulator::tma + 1 + emulator::thread(), [=] {
    for (unsigned i = 0; i < static_cast<unsigned>(bytes) / 4; ++i) {
      float term;
      std::memcpy(&term, emulator::shared_at(from + 4 * i, 4, 4), 4);
      to[i] +=
          emulator::unfenced_stores().in(from + 4 * i, 4) ? std::numeric_limits<float>::quiet_NaN() : term;
    }
  });
}
inline void bulk_add_wait_read(const std::source_location& where = std::source_location::current()) {
  if (!emulator::ignored(where)) emulator::finish_work(emulator::tma + 1 + emulator::thread(), 0);
}

inline void fence_proxy_async(const std::source_location& where = std::source_location::current()) {
  if (!emulator::ignored(where)) emulator::unfenced_stores().fence();
}

inline void red_add_v2(float* to, float first, float second) {
  if (reinterpret_cast<std::uintptr_t>(to) % 8 != 0) emulator::fail("red.v2: the address is not aligned");
  to[0] += first;
  to[1] += second;
}

template <int threads>
void named_barrier(int number, const std::source_location& where = std::source_location::current()) {
  if (!emulator::ignored(where)) emulator::barrier_sync(number, threads);
}

// These only order the warpgroups in time. A kernel is correct without them, so they are not added to places().
template <int threads>
void named_barrier_sync(int number, const std::source_location& where = std::source_location::current()) {
  (void)where;
  emulator::barrier_sync(number, threads);
}
template <int threads>
void named_barrier_arrive(int number) {
  emulator::barrier_arrive(number, threads);
}

template <int registers>
void setmaxnreg_dec(const std::source_location& where = std::source_location::current()) {
  static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256);
  if (registers > emulator::Registers::at_start())
    emulator::fail("setmaxnreg.dec to more registers than a thread has");
  emulator::hopper_block().registers.resize(registers, where);
}
template <int registers>
void setmaxnreg_inc(const std::source_location& where = std::source_location::current()) {
  static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256);
  emulator::hopper_block().registers.resize(registers, where);
}

inline unsigned long long matrix_descriptor(unsigned address, unsigned columns_on) {
  return (address & 0x3ffffU) >> 4U | static_cast<unsigned long long>(columns_on >> 4U) << 16U |
         (1024ULL >> 4U) << 32U | 1ULL << 62U;
}

inline void wgmma_fence() {}
inline void wgmma_commit() {
  const unsigned thread = emulator::thread();
  emulator::Products& products = emulator::hopper_block().products[thread / emulator::warpgroup];
  products.commits[thread % emulator::warpgroup].push_back(products.called[thread % emulator::warpgroup]);
}
template <int newest>
void wgmma_wait(const std::source_location& where = std::source_location::current()) {
  if (emulator::ignored(where)) return;
  const unsigned thread = emulator::thread();
  emulator::Products& products = emulator::hopper_block().products[thread / emulator::warpgroup];
  const std::vector<std::size_t>& commits = products.commits[thread % emulator::warpgroup];
  if (commits.size() <= newest) return;
  const std::size_t last = commits[commits.size() - 1 - newest];
  while (products.started < last) emulator::wait_in(products.waiting, where);
  emulator::finish_work(thread / emulator::warpgroup, products.started - last);
}
template <int rows, int count>
void wgmma_fence_operand(unsigned (&)[rows][count]) {}
template <int count>
void wgmma_fence_result(float (&)[count]) {}

template <class T, int a_by_columns, int b_by_rows, int count>
void wgmma_m64nNk16(float (&d)[count], unsigned long long a, unsigned long long b, bool accumulate) {
  emulator::call_product({a, b, accumulate}, d, nullptr, [](const emulator::Product& product) {
    emulator::compute<T, count>(product, b_by_rows != 0, [&](float(&A)[64][16]) {
      emulator::SharedMatrix(product.operands.a).read<T>(A[0], 64, 16, 1, a_by_columns == 0);
    });
  });
}

template <class T, int b_by_rows, int count>
void wgmma_m64nNk16(float (&d)[count], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
  emulator::call_product({0, b, accumulate}, d, a, [](const emulator::Product& product) {
    emulator::compute<T, count>(product, b_by_rows != 0, [&](float(&A)[64][16]) {
      for (unsigned i = 0; i < 64; ++i)
        for (unsigned k = 0; k < 16; ++k) {
          const unsigned* const registers = product.registers[i / 16 * 32 + i % 8 * 4 + k % 8 / 2];
          A[i][k] = emulator::element<T>(registers[i % 16 / 8 + k / 8 * 2], k % 2);
        }
    });
  });
}

}  // namespace ring_attention::cuda
