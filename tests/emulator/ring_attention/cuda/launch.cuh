// The emulator's src/ring_attention/cuda/launch.cuh. Blocks run one after the other, in random order.
#pragma once

#include <functional>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

#include "emulator/language.hpp"
#include "ring_attention/cuda/error.hpp"
#include "ring_attention/cuda/grid.hpp"
#include "ring_attention/cuda/kernels.hpp"

namespace ring_attention::cuda {

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), const LaunchConfig& grid, StreamHandle,
            const Arguments&... arguments) {
  if (grid.blocks_y > 65535) emulator::fail("more than 65535 blocks in y");
  const std::lock_guard one_at_a_time(emulator::in_use());
  const dim3 blocks(static_cast<unsigned>(grid.blocks), static_cast<unsigned>(grid.blocks_y));
  std::vector<unsigned> order(std::size_t{blocks.x} * blocks.y);
  std::iota(order.begin(), order.end(), 0U);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(emulator::options().seed));
  emulator::seed_schedule(emulator::options().seed);
  emulator::Indices& at = emulator::grid();
  at.blocks = blocks;
  at.threads = dim3(static_cast<unsigned>(grid.threads));
  for (const unsigned block : order) {
    at.block = {block % blocks.x, block / blocks.x, 0};
    emulator::run_block(at.threads.x, grid.shared_bytes, [&](unsigned) { kernel(Parameters(arguments)...); });
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
