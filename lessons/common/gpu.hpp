// What the GPU lessons share.
#pragma once

#include <string>

#include "ring_attention/cuda/device.hpp"

namespace ring_attention::gpu {

// For Lesson::needs_gpu().
inline std::string why_none() {
  const std::string why = cuda::why_no_device();
  return why.empty() ? why : "no GPU: " + why;
}

}  // namespace ring_attention::gpu
