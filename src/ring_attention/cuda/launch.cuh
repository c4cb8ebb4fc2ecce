/// \file
/// Launches kernels and allocates their scratch memory.
///
/// The emulator replaces this file (lessons/emulator).
#pragma once

#include <cuda_runtime.h>

#include "ring_attention/cuda/check.hpp"
#include "ring_attention/cuda/grid.cuh"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

/// Enqueues kernel(arguments...) on `stream`. Opts in to more than 48 KB of shared memory if necessary. Does nothing if
/// the grid has no blocks. \throws Error if CUDA reports one
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchConfig& grid, StreamHandle stream,
            const Arguments&... arguments) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0 || grid.blocks.z == 0) return;
  if (grid.shared_bytes > 48 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes));
  cudaLaunchConfig_t config{};
  config.gridDim = grid.blocks;
  config.blockDim = grid.threads;
  config.dynamicSmemBytes = static_cast<std::size_t>(grid.shared_bytes);
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

/// The memory pool of the current device from which Scratch allocates. It keeps 512 MiB of what is freed. CUDA's default
/// pool returns all of it to the driver when the host waits for a stream, so that each timed call would begin with an
/// allocation by the driver.
cudaMemPool_t scratch_pool();

/// Device memory for kernels on one stream. It is allocated and freed in the order of the stream: the host does not
/// wait.
template <class T>
class Scratch {
 public:
  Scratch(Index count, StreamHandle stream) : stream_(stream) {
    if (count > 0)
      check(cudaMallocFromPoolAsync(&data_, static_cast<std::size_t>(count) * sizeof(T), scratch_pool(),
                                    stream));
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    if (data_ != nullptr) (void)cudaFreeAsync(data_, stream_);
  }
  [[nodiscard]] T* data() const { return static_cast<T*>(data_); }

 private:
  StreamHandle stream_;
  void* data_ = nullptr;
};

}  // namespace ring_attention::cuda
