/// \file
/// The grid of a kernel, on a GPU and in the emulator.
#pragma once

#include <vector_types.h>

#include "ring_attention/core/index.hpp"

namespace ring_attention::cuda {

/// The number of blocks, the threads of a block, and the bytes of dynamic shared memory.
struct LaunchConfig {
  LaunchConfig(dim3 blocks_of_grid, dim3 threads_of_block, int bytes = 0)
      : blocks(blocks_of_grid), threads(threads_of_block), shared_bytes(bytes) {}
  LaunchConfig(Index count, int size, int bytes = 0)
      : LaunchConfig(dim3(static_cast<unsigned>(count)), dim3(static_cast<unsigned>(size)), bytes) {}

  dim3 blocks, threads;
  int shared_bytes;
};

/// The number of blocks of `size` that cover `count`.
template <class Number>
[[nodiscard]] constexpr Number blocks_of(Number count, Number size) {
  return (count + size - 1) / size;
}

}  // namespace ring_attention::cuda
