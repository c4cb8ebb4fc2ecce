#include "ring_attention/core/tensor.hpp"

#include <cstring>
#include <new>

namespace ring_attention {
namespace {

constexpr std::align_val_t alignment{64};  // one cache line, one AVX-512 vector

class HostAllocator final : public Allocator {
 public:
  [[nodiscard]] void* allocate(std::size_t bytes) const override {
    void* memory = ::operator new(bytes, alignment);
    std::memset(memory, 0, bytes);
    HostBytes& held = host_bytes();
    held.current += static_cast<Index>(bytes);
    held.peak = std::max(held.peak, held.current);
    ++held.allocations;
    return memory;
  }
  void free(void* memory, std::size_t bytes) const noexcept override {
    ::operator delete(memory, alignment);
    host_bytes().current -= static_cast<Index>(bytes);
  }
};

}  // namespace

HostBytes& host_bytes() {
  static thread_local HostBytes bytes;
  return bytes;
}

const Allocator& host_allocator() {
  static const Allocator& allocator = *new HostAllocator;  // never destroyed: static tensors may outlive it
  return allocator;
}

}  // namespace ring_attention
