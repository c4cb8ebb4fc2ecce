// What the lessons for GPUs share.
#pragma once

#include <string>

#include "ring_attention/cuda/device.hpp"

namespace ring_attention::gpu {

// Why there is no GPU, for Lesson::needs_gpu(); empty when there is one.
inline std::string why_none() {
  const std::string why = cuda::why_no_device();
  return why.empty() ? why : "no GPU: " + why;
}

}  // namespace ring_attention::gpu
