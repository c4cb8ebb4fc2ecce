/// \file
/// The grid of a kernel, on a GPU and in the emulator.
#pragma once

#include "ring_attention/core/shape.hpp"

namespace ring_attention::cuda {

/// The number of blocks, the threads of a block, the bytes of dynamic shared memory, and the blocks in y.
struct LaunchConfig {
  Index blocks;
  int threads;
  int shared_bytes = 0;
  int blocks_y = 1;
};

/// The number of blocks of `size` that cover `count`.
template <class Number>
[[nodiscard]] constexpr Number blocks_of(Number count, Number size) {
  return (count + size - 1) / size;
}

}  // namespace ring_attention::cuda
