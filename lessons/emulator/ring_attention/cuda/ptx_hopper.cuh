// The emulator's src/ring_attention/cuda/ptx_hopper.cuh, written from the PTX ISA: matrix descriptors, the swizzle of
// TMA, the phases of mbarriers.
#pragma once

#include <array>
#include <map>

#include "emulator/wgmma.hpp"
#include "ring_attention/cuda/ptx.cuh"
#include "ring_attention/cuda/tensor_map.cuh"

namespace ring_attention::emulator {

struct CountingBarrier {
  unsigned count = 0, arrived = 0, phase = 0;
  long bytes = 0;  // expected and not yet arrived
  Waiting waiting = {};

  static std::string in_words(const void* of) {
    const auto& barrier = *static_cast<const CountingBarrier*>(of);
    const std::string bytes = std::to_string(std::abs(barrier.bytes));
    return "at an mbarrier, whose phase " + std::to_string(barrier.phase) + " has " +
           std::to_string(barrier.arrived) + " of " + std::to_string(barrier.count) + " arrivals" +
           (barrier.bytes > 0   ? ", and " + bytes + " bytes have not come"
            : barrier.bytes < 0 ? ", and " + bytes + " bytes more have come than are expected"
                                : "");
  }
  void arrive(const std::source_location& where) {
    if (++arrived > count)
      fail("more than " + std::to_string(count) + " arrivals in one phase of an mbarrier: " +
           where.file_name() + ":" + std::to_string(where.line()));
    complete_phase();
  }
  void complete_phase() {
    if (arrived < count || bytes != 0) return;
    arrived = 0;
    ++phase;
    wake(waiting);
  }
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
  Registers registers;
};

inline HopperBlock& hopper_block() { return of_block<HopperBlock>(); }

inline CountingBarrier& counting_barrier(unsigned address) {
  (void)shared_at(address, 8, 8);
  const auto at = hopper_block().barriers.find(address);
  if (at == hopper_block().barriers.end()) fail("an mbarrier was not initialised");
  return at->second;
}

}  // namespace ring_attention::emulator

namespace ring_attention::cuda {

inline void mbarrier_init(unsigned barrier, unsigned count) {
  (void)emulator::shared_at(barrier, 8, 8);
  emulator::hopper_block().barriers[barrier] = {count};
}
inline void mbarrier_init_fence() {}
inline void mbarrier_arrive(unsigned barrier,
                            const std::source_location& where = std::source_location::current()) {
  emulator::counting_barrier(barrier).arrive(where);
  emulator::pause();
}
// A missing synchronization of the lanes is not found: other collective instructions order them, too.
inline void mbarrier_arrive_for_warp(unsigned barrier, int lane) {
  (void)emulator::ballot(true);
  if (lane == 0) mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes,
                                      const std::source_location& where = std::source_location::current()) {
  emulator::counting_barrier(barrier).bytes += bytes;
  mbarrier_arrive(barrier, where);
}
inline void mbarrier_wait(unsigned barrier, unsigned parity,
                          const std::source_location& where = std::source_location::current()) {
  if (emulator::ignored(where)) return;
  emulator::pause();
  emulator::CountingBarrier& state = emulator::counting_barrier(barrier);
  while (state.phase % 2 == parity)
    emulator::wait_in(state.waiting, {emulator::CountingBarrier::in_words, &state, where});
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
    state.bytes -= 128L * map.box_rows;
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
  if (!emulator::ignored(where)) emulator::barrier_sync(number, threads, where);
}

// These only order the warpgroups in time. A kernel is correct without them, so they are not added to places().
template <int threads>
void named_barrier_sync(int number, const std::source_location& where = std::source_location::current()) {
  emulator::barrier_sync(number, threads, where);
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
  emulator::Products& products = emulator::products_of_warpgroup();
  products.commits[thread % emulator::warpgroup].push_back(products.called[thread % emulator::warpgroup]);
}
template <int newest>
void wgmma_wait(const std::source_location& where = std::source_location::current()) {
  if (emulator::ignored(where)) return;
  const unsigned thread = emulator::thread();
  emulator::Products& products = emulator::products_of_warpgroup();
  const std::vector<std::size_t>& commits = products.commits[thread % emulator::warpgroup];
  if (commits.size() <= newest) return;
  const std::size_t last = commits[commits.size() - 1 - newest];
  while (products.started < last)
    emulator::wait_in(products.waiting, {emulator::Products::in_words, nullptr, where});
  emulator::finish_work(thread / emulator::warpgroup, products.started - last);
}
template <int rows, int count>
void wgmma_fence_operand(unsigned (&)[rows][count]) {}
template <int count>
void wgmma_fence_result(float (&)[count]) {}

template <class T, int a_by_columns, int b_by_rows, int count>
void wgmma_m64nNk16(float (&d)[count], unsigned long long a, unsigned long long b, bool accumulate) {
  emulator::call_product(
      {emulator::half_of<T>, false, a_by_columns != 0, b_by_rows != 0, count, a, b, accumulate}, d, nullptr);
}

template <class T, int b_by_rows, int count>
void wgmma_m64nNk16(float (&d)[count], const unsigned (&a)[4], unsigned long long b, bool accumulate) {
  emulator::call_product({emulator::half_of<T>, true, false, b_by_rows != 0, count, 0, b, accumulate}, d, a);
}

}  // namespace ring_attention::cuda
