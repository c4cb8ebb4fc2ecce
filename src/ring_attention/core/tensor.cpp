#include "ring_attention/core/tensor.hpp"

#include <sys/resource.h>

#include <cstring>
#include <new>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace ring_attention {
namespace {

struct Counters {
  Index current = 0;
  Index peak = 0;
  Index count = 0;
};
thread_local Counters counters;

constexpr std::align_val_t alignment{64};  // one cache line, one AVX-512 vector

}  // namespace

namespace allocation {
Index current() { return counters.current; }
Index peak() { return counters.peak; }
Index count() { return counters.count; }
void reset_peak() { counters.peak = counters.current; }

void keep_freed() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);         // large arrays come from the heap, ...
  mallopt(M_TRIM_THRESHOLD, -1);  // ... which does not shrink
#endif
}

Index process_peak() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return usage.ru_maxrss * 1024;
#endif
}

bool available(Index bytes) {
  void* memory = ::operator new(static_cast<std::size_t>(bytes), std::nothrow);
  ::operator delete(memory);
  return memory != nullptr;
}
}  // namespace allocation

namespace {

class HostAllocator final : public Allocator {
 public:
  [[nodiscard]] void* allocate(std::size_t bytes) const override {
    void* memory = ::operator new(bytes, alignment);
    std::memset(memory, 0, bytes);
    counters.current += static_cast<Index>(bytes);
    counters.peak = std::max(counters.peak, counters.current);
    ++counters.count;
    return memory;
  }
  void free(void* memory, std::size_t bytes) const noexcept override {
    ::operator delete(memory, alignment);
    counters.current -= static_cast<Index>(bytes);
  }
};

}  // namespace

const Allocator& host_allocator() {
  static const Allocator& allocator = *new HostAllocator;  // never destroyed: static tensors may outlive it
  return allocator;
}

}  // namespace ring_attention
