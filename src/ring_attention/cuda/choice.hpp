/// \file
/// Which kernel computes.
#pragma once

#include <string>

#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// The kernel of this name; with "auto" the highest step of the ladder that takes the type and the dim on this
/// device, of the backward the highest that is deterministic.
/// \throws InputError when there is none, with the names of those that there are
[[nodiscard]] const ForwardKernel& choose_forward(const std::string& name, const DeviceTraits& device,
                                                  Type type, int dim);
[[nodiscard]] const BackwardKernel& choose_backward(const std::string& name, const DeviceTraits& device,
                                                    Type type, int dim);

/// `fp32`, `bf16`, `fp16`.
[[nodiscard]] const char* name_of(Type type);

/// What rounding a float to the nearest number of this type may be off, relative to it: the unit roundoff, half the
/// distance from 1 to the next number. bf16 has 8 significant bits, fp16 has 11; fp32 rounds nothing: 0.
[[nodiscard]] constexpr double unit_roundoff(Type type) {
  return type == Type::bf16 ? 0x1p-8 : type == Type::fp16 ? 0x1p-11 : 0;
}

}  // namespace ring_attention::cuda
