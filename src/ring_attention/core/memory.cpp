#include "ring_attention/core/memory.hpp"

#include <algorithm>
#include <functional>

namespace ring_attention {

void HostMemory::add(std::span<float> sum, std::span<const float> term) const {
  std::ranges::transform(sum, term, sum.begin(), std::plus<>());
}

void HostMemory::add(std::span<double> sum, std::span<const double> term) const {
  std::ranges::transform(sum, term, sum.begin(), std::plus<>());
}

void HostMemory::zero_bytes(std::span<std::byte> array) const { std::ranges::fill(array, std::byte{0}); }

void HostMemory::copy_bytes(std::span<std::byte> to, std::span<const std::byte> from) const {
  std::ranges::copy(from, to.begin());
}

const Memory& host_memory() {
  static const HostMemory memory;
  return memory;
}

}  // namespace ring_attention
