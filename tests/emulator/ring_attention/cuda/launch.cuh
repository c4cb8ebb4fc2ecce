// The emulator's src/ring_attention/cuda/launch.cuh. Blocks run one after the other, in random order.
#pragma once

#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "emulator/language.hpp"
#include "ring_attention/cuda/error.hpp"
#include "ring_attention/cuda/grid.cuh"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchConfig& grid, StreamHandle,
            const Arguments&... arguments) {
  if (grid.blocks.y > 65535 || grid.blocks.z > 65535) emulator::fail("more than 65535 blocks in y or z");
  const std::lock_guard one_at_a_time(emulator::in_use());
  std::vector<unsigned> order(std::size_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(emulator::options().seed));
  emulator::seed_schedule(emulator::options().seed);
  emulator::Indices& at = emulator::grid();
  at.blocks = grid.blocks;
  at.threads = grid.threads;
  for (const unsigned block : order) {
    at.block = {block % grid.blocks.x, block / grid.blocks.x % grid.blocks.y,
                block / grid.blocks.x / grid.blocks.y};
    emulator::run_block(grid.threads.x * grid.threads.y * grid.threads.z, grid.shared_bytes,
                        [&](unsigned) { kernel(Parameters(arguments)...); });
  }
}

// Scratch memory starts as NaN.
template <class T>
class Scratch {
 public:
  Scratch(Index count, StreamHandle) : memory_(static_cast<std::size_t>(count) * sizeof(T), 0xff) {}
  [[nodiscard]] T* data() const { return reinterpret_cast<T*>(const_cast<unsigned char*>(memory_.data())); }

 private:
  std::vector<unsigned char> memory_;
};

}  // namespace ring_attention::cuda
