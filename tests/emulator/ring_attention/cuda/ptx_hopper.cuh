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

  void complete_phase() {
    if (arrived > count) fail("more threads arrive at an mbarrier than its count");
    if (arrived < count || bytes != 0) return;
    arrived = 0;
    ++phase;
    progress();
  }
};

// The wgmma of one warpgroup: how many were started, and for each thread how many at each of its commits.
struct Products {
  std::size_t started = 0;
  std::array<std::vector<std::size_t>, 128> commits;
};

// The registers of each thread. At the start each thread has an equal part of the multiprocessor's 65536. All threads of a
// warpgroup change their number together.
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
  template <class T>
  [[nodiscard]] float at(unsigned across, unsigned along, bool sum_along_rows) const {
    const unsigned address = sum_along_rows ? start + across / 8 * stride + across % 8 * 128 + along * 2
                                            : start + across / 64 * columns_on + across % 64 * 2 +
                                                  along / 8 * stride + along % 8 * 128;
    unsigned short bits;
    std::memcpy(&bits, shared_at(swizzled(address), 2, 2), 2);
    return unfenced_stores().at(swizzled(address)) ? std::numeric_limits<float>::quiet_NaN()
                                                   : element<T>(bits, 0);
  }
};

constexpr unsigned warpgroup = 128;

// Starts a product as asynchronous work. `d` and `of_a` belong to all threads of the warpgroup.
template <class T, int count, class OfA>
void start_products(const std::array<float*, warpgroup>& d, OfA of_a, const SharedMatrix& b, bool b_by_rows,
                    bool accumulate) {
  constexpr unsigned n = 2 * count;
  Products& products = hopper_block().products[thread() / warpgroup];
  ++products.started;
  start_work(thread() / warpgroup, [=] {
    static float A[64][16], B[16][n];
    for (unsigned i = 0; i < 64; ++i)
      for (unsigned k = 0; k < 16; ++k) A[i][k] = of_a(i, k);
    for (unsigned k = 0; k < 16; ++k)
      for (unsigned j = 0; j < n; ++j) B[k][j] = b.at<T>(j, k, !b_by_rows);
    for (unsigned t = 0; t < warpgroup; ++t)
      for (unsigned e = 0; e < count; ++e) {
        const unsigned i = t / 32 * 16 + t % 32 / 4 + e % 4 / 2 * 8, j = e / 4 * 8 + t % 4 * 2 + e % 2;
        float sum = accumulate ? d[t][e] : 0;
        for (unsigned k = 0; k < 16; ++k) sum += A[i][k] * B[k][j];
        d[t][e] = sum;
      }
  });
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
  const emulator::CountingBarrier& state = emulator::counting_barrier(barrier);
  emulator::wait_until(where, [&] { return state.phase % 2 != parity; });
}

inline void tma_load_3d(unsigned to, const TensorMap& map, int column, int row, int matrix,
                        unsigned barrier) {
  if (to % 1024 != 0) emulator::fail("a TMA box does not start at a multiple of 1024 bytes");
  (void)emulator::counting_barrier(barrier);
  emulator::start_work(emulator::tma, [=] {
    for (int i = 0; i < map.box_rows; ++i)
      for (int j = 0; j < 64; ++j) {
        unsigned short bits = 0;
        if (column + j < map.dim && row + i >= 0 && row + i < map.rows && matrix < map.matrices)
          std::memcpy(&bits,
                      static_cast<const char*>(map.first) +
                          2 * ((matrix * map.rows + row + i) * map.dim + column + j),
                      2);
        const auto address = to + static_cast<unsigned>(128 * i + 2 * j);
        std::memcpy(emulator::shared_at(emulator::swizzled(address), 2, 2), &bits, 2);
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
    std::memcpy(emulator::shared_at(to, static_cast<unsigned>(bytes), 16), from,
                static_cast<std::size_t>(bytes));
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
      to[i] += emulator::unfenced_stores().at(from + 4 * i) ? std::numeric_limits<float>::quiet_NaN() : term;
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
  products.commits[thread % emulator::warpgroup].push_back(products.started);
}
template <int newest>
void wgmma_wait(const std::source_location& where = std::source_location::current()) {
  if (emulator::ignored(where)) return;
  const unsigned thread = emulator::thread();
  const emulator::Products& products = emulator::hopper_block().products[thread / emulator::warpgroup];
  const std::vector<std::size_t>& commits = products.commits[thread % emulator::warpgroup];
  if (commits.size() > newest)
    emulator::finish_work(thread / emulator::warpgroup,
                          products.started - commits[commits.size() - 1 - newest]);
}
template <int rows, int count>
void wgmma_fence_operand(unsigned (&)[rows][count]) {}
template <int count>
void wgmma_fence_result(float (&)[count]) {}

template <class T, int a_by_columns, int b_by_rows, int count>
void wgmma_m64nNk16(float (&d)[count], unsigned long long a, unsigned long long b, bool accumulate) {
  struct Arguments {
    float* d;
    unsigned long long a, b;
    bool accumulate;
  } arguments{d, a, b, accumulate};
  emulator::together(emulator::warpgroup, arguments, [](Arguments* const* each) {
    std::array<float*, emulator::warpgroup> of_each;
    for (unsigned t = 0; t < emulator::warpgroup; ++t) {
      of_each[t] = each[t]->d;
      if (each[t]->a != each[0]->a || each[t]->b != each[0]->b || each[t]->accumulate != each[0]->accumulate)
        emulator::fail("the threads of a warpgroup disagree about a product");
    }
    const emulator::SharedMatrix of_a(each[0]->a), of_b(each[0]->b);
    emulator::start_products<T, count>(
        of_each, [of_a](unsigned i, unsigned k) { return of_a.at<T>(i, k, a_by_columns == 0); }, of_b,
        b_by_rows != 0, each[0]->accumulate);
  });
}

template <class T, int b_by_rows, int count>
void wgmma_m64nNk16(float (&d)[count], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
  struct Arguments {
    float* d;
    const unsigned* a;
    unsigned long long b;
    bool accumulate;
  } arguments{d, a, b, accumulate};
  emulator::together(emulator::warpgroup, arguments, [](Arguments* const* each) {
    std::array<float*, emulator::warpgroup> of_each;
    std::array<const unsigned*, emulator::warpgroup> registers;  // read when the product is computed
    for (unsigned t = 0; t < emulator::warpgroup; ++t) {
      of_each[t] = each[t]->d;
      registers[t] = each[t]->a;
      if (each[t]->b != each[0]->b || each[t]->accumulate != each[0]->accumulate)
        emulator::fail("the threads of a warpgroup disagree about a product");
    }
    const auto of_a = [registers](unsigned i, unsigned k) {
      const unsigned t = i / 16 * 32 + i % 8 * 4 + k % 8 / 2;
      return emulator::element<T>(registers[t][i % 16 / 8 + k / 8 * 2], k % 2);
    };
    emulator::start_products<T, count>(of_each, of_a, emulator::SharedMatrix(each[0]->b), b_by_rows != 0,
                                       each[0]->accumulate);
  });
}

}  // namespace ring_attention::cuda
