/// \file
/// Chooses the kernel.
#pragma once

#include <string>

#include "ring_attention/core/shape.hpp"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// The kernel with this name. "auto" is the deterministic kernel with the highest number that is automatic and supports the
/// type and the dim on this device, and with `pairs` a dense bias, a softcap and dropout.
/// \throws InputError if no kernel matches; the message lists the kernels that support the problem
[[nodiscard]] const ForwardKernel& choose_forward(const std::string& name, const DeviceTraits& device,
                                                  Type type, int dim, bool pairs = false);
[[nodiscard]] const BackwardKernel& choose_backward(const std::string& name, const DeviceTraits& device,
                                                    Type type, int dim, bool pairs = false);

/// The kernels compute with V of as many columns as K has. \throws InputError otherwise
void require_equal_widths(const Shape& q, const Shape& v);

/// `fp32`, `bf16`, `fp16`.
[[nodiscard]] const char* name_of(Type type);

/// The unit roundoff of storing a float in this type: half the distance from 1 to the next number. bf16 has 8
/// significant bits, fp16 has 11. fp32 stores a float exactly: 0.
[[nodiscard]] constexpr double unit_roundoff(Type type) {
  return type == Type::bf16 ? 0x1p-8 : type == Type::fp16 ? 0x1p-11 : 0;
}

}  // namespace ring_attention::cuda
