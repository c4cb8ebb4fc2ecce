// The emulator's src/ring_attention/cuda/ptx.cuh, written from the PTX ISA.
#pragma once

#include <bit>
#include <cstring>
#include <deque>
#include <type_traits>

#include "emulator/language.hpp"
#include "emulator/proxies.hpp"
#include "emulator/tensor_core.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::emulator {

template <class T>
constexpr Half half_of = std::is_same_v<T, __nv_bfloat16> ? Half::bf16 : Half::fp16;

// The groups of copies of one thread. Copies that are not yet committed belong to group `open`.
struct CopyGroups {
  struct Copy {
    std::byte* to;
    const void* from;
    bool valid;
    int group;
  };
  std::deque<Copy> copies;
  int open = 0;

  void arrive(const Copy& copy) const {
    if (copy.valid)
      std::memcpy(copy.to, copy.from, 16);
    else
      std::memset(copy.to, 0, 16);
  }
};

// The groups of the running thread. A copy arrives at once or at the wait for it. Without a wait it may never arrive.
inline CopyGroups& copy_groups() {
  auto& of_threads = of_block<std::vector<CopyGroups>>();
  if (of_threads.size() <= thread()) of_threads.resize(thread() + 1);
  return of_threads[thread()];
}

}  // namespace ring_attention::emulator

namespace ring_attention::cuda {

template <class T>
T* dynamic_shared() {
  return reinterpret_cast<T*>(emulator::shared_memory());
}

inline int opaque(int x) { return x; }

inline unsigned shared_address(const void* pointer) { return emulator::shared_address(pointer); }

inline void cp_async_16(unsigned to, const void* from, bool valid) {
  if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
    emulator::fail("cp.async: global memory is not aligned");
  emulator::CopyGroups& groups = emulator::copy_groups();
  const emulator::CopyGroups::Copy copy{emulator::shared_at(to, 16, 16), from, valid, groups.open};
  if (emulator::random_below(4) == 0)
    groups.arrive(copy);  // some copies are complete at once
  else
    groups.copies.push_back(copy);
}

inline void cp_async_commit() { ++emulator::copy_groups().open; }

template <int newest>
void cp_async_wait(const std::source_location& where = std::source_location::current()) {
  if (emulator::ignored(where)) return;
  emulator::CopyGroups& groups = emulator::copy_groups();
  while (!groups.copies.empty() && groups.copies.front().group < groups.open - newest) {
    groups.arrive(groups.copies.front());
    groups.copies.pop_front();
  }
}

inline void store_shared(unsigned to, unsigned value) {
  std::memcpy(emulator::shared_at(to, 4, 4), &value, 4);
  emulator::unfenced_stores().store(to, 4);
}

inline void store_shared_v2(unsigned to, float first, float second) {
  store_shared(to, std::bit_cast<unsigned>(first));
  store_shared(to + 4, std::bit_cast<unsigned>(second));
}

inline void wait_for_value(const int* at, int value,
                           const std::source_location& where = std::source_location::current()) {
  if (!emulator::ignored(where)) emulator::wait_until(where, [&] { return *at == value; });
}
inline void store_release(int* to, int value) {
  *to = value;
  emulator::progress();
}

namespace detail {
// A lane's row is read when the lane calls it, so earlier writes of other lanes must be ordered by a barrier.
template <bool transposed>
void ldmatrix_x4(unsigned (&r)[4], unsigned row) {
  struct Arguments {
    unsigned short row[8];
    unsigned* r;
  } arguments{{}, r};
  std::memcpy(arguments.row, emulator::shared_at(row, 16, 16), 16);
  emulator::together(32, arguments, [](Arguments* const* each) {
    const auto m = [&](unsigned matrix, unsigned i, unsigned j) {
      return unsigned{each[8 * matrix + i]->row[j]};
    };
    for (unsigned matrix = 0; matrix < 4; ++matrix)
      for (unsigned lane = 0; lane < 32; ++lane) {
        const unsigned i = lane / 4, j = lane % 4 * 2;
        each[lane]->r[matrix] = transposed ? m(matrix, j, i) | m(matrix, j + 1, i) << 16U
                                           : m(matrix, i, j) | m(matrix, i, j + 1) << 16U;
      }
  });
}
}  // namespace detail
inline void ldmatrix_x4(unsigned (&r)[4], unsigned row) { detail::ldmatrix_x4<false>(r, row); }
inline void ldmatrix_x4_trans(unsigned (&r)[4], unsigned row) { detail::ldmatrix_x4<true>(r, row); }

template <class T>
void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  emulator::MmaLane lane{d, a, {b0, b1}};
  emulator::together(32, lane,
                     [](emulator::MmaLane* const* lanes) { emulator::mma(emulator::half_of<T>, lanes); });
}

template <class T>
unsigned packed(float low, float high) {
  const auto bits = [](float x) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      return unsigned{std::bit_cast<unsigned short>(__float2bfloat16_rn(x))};
    else
      return unsigned{std::bit_cast<unsigned short>(__float2half_rn(x))};
  };
  return bits(low) | bits(high) << 16U;
}

inline float ex2_approx(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126F ? 0.0F : y;
}

}  // namespace ring_attention::cuda
