/// \file
/// Instruction sets: the kernels are compiled once for each, and the program picks the best one that
/// the machine supports when it starts.
#pragma once

#include <string_view>
#include <vector>

#include "ring_attention/cpu/kernels.hpp"

namespace ring_attention {

/// From narrow to wide. A set that this build does not have is never available.
enum class Isa {
  x86_64,  ///< SSE2: every x86-64
  avx2,    ///< AVX2 and FMA
  avx512,  ///< AVX-512 F, BW, DQ and VL
  neon,    ///< every arm64
  generic  ///< any other processor: vectors that the compiler translates
};

/// The sets that this build has and this machine can run, from narrow to wide; never empty.
[[nodiscard]] const std::vector<Isa>& available_isas();
[[nodiscard]] inline Isa best_isa() { return available_isas().back(); }

[[nodiscard]] const char* name_of(Isa isa);
/// \throws Error, which lists the available ones
[[nodiscard]] Isa isa_named(std::string_view name);

/// The kernels for arithmetic in T, float or double. \throws Error when the instruction set is not available
template <class T>
[[nodiscard]] const cpu::Kernels<T>& kernels(Isa isa);

/// The kernel for this many queries: one with few lanes if they are enough.
template <class T>
[[nodiscard]] const cpu::ForwardKernel<T>& forward_kernel(const cpu::ForwardKernels<T>& kernels,
                                                          cpu::Size queries) {
  for (const cpu::ForwardKernel<T>& few : kernels.few)
    if (queries <= static_cast<cpu::Size>(few.lanes)) return few;
  return kernels.many;
}

}  // namespace ring_attention
