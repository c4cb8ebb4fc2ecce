#include "ring_attention/core/allocation.hpp"

#if !defined(__wasm__)
#include <sys/resource.h>
#endif

#include <new>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "ring_attention/core/tensor.hpp"

namespace ring_attention::allocation {

Index current() { return host_bytes().current; }
Index peak() { return host_bytes().peak; }
Index count() { return host_bytes().allocations; }
void reset_peak() { host_bytes().peak = host_bytes().current; }

void keep_freed() {
#if defined(__GLIBC__)
  mallopt(M_MMAP_MAX, 0);         // large arrays come from the heap, ...
  mallopt(M_TRIM_THRESHOLD, -1);  // ... which does not shrink
#endif
}

Index process_peak() {
#if defined(__wasm__)
  return Index{__builtin_wasm_memory_size(0)} << 16U;  // pages
#else
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  return usage.ru_maxrss;
#else
  return usage.ru_maxrss * 1024;
#endif
#endif
}

bool available(Index bytes) {
  void* memory = ::operator new(static_cast<std::size_t>(bytes), std::nothrow);
  ::operator delete(memory);
  return memory != nullptr;
}

}  // namespace ring_attention::allocation
