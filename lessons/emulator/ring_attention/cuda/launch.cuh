// The emulator's src/ring_attention/cuda/launch.cuh.
#pragma once

#include <tuple>

#include "emulator/language.hpp"
#include "emulator/streams.hpp"
#include "ring_attention/cuda/error.hpp"
#include "ring_attention/cuda/grid.cuh"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchConfig& grid, StreamHandle stream,
            const Arguments&... arguments) {
  constexpr int most_shared_bytes = 227 * 1024;
  if (grid.blocks.y > 65535 || grid.blocks.z > 65535) emulator::fail("more than 65535 blocks in y or z");
  if (grid.shared_bytes > most_shared_bytes) emulator::fail("a block has too much shared memory");
  const auto count = [](const dim3& sizes) { return sizes.x * sizes.y * sizes.z; };
  const emulator::Grid sizes{count(grid.blocks), count(grid.threads), grid.shared_bytes};
  const auto run = [=, values = std::tuple<Parameters...>(Parameters(arguments)...)] {
    emulator::blocks_of_grid = grid.blocks;
    emulator::threads_of_block = grid.threads;
    emulator::run_grid(sizes, [&] { std::apply(kernel, values); });
  };
  emulator::enqueue_kernel(stream, sizes.blocks, run);
}

// Scratch memory starts as NaN.
template <class T>
class Scratch {
 public:
  Scratch(Index count, StreamHandle stream) : stream_(stream) {
    if (count > 0) check(cudaMallocAsync(&data_, static_cast<std::size_t>(count) * sizeof(T), stream));
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
