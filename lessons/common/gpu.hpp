/// \file
/// What the lessons on a GPU share: which GPU it is, and whether times are measured on it.
#pragma once

#include <string>

#include "common/lesson.hpp"
#include "ring_attention/cuda/device.hpp"

namespace ring_attention::gpu {

/// Is the GPU that of lessons/emulator? Then no times are measured, unless a flag asks for them: they say nothing about
/// a GPU.
inline bool emulated() {
  return cuda::why_no_device().empty() && cuda::name_of(cuda::current_device()) == "the emulator";
}

/// Says which GPU it is.
inline void describe_device(const Lesson& lesson) {
  const std::string name = cuda::name_of(cuda::current_device());
  lesson.say("On " + name + (emulated() ? ": correctness only." : "."));
}

}  // namespace ring_attention::gpu
