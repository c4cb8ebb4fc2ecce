// Fibers: threads of one CPU thread, each with a stack of its own, that continue where one of them says.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <memory>

namespace ring_attention::emulator {

// A fiber is started once and then used for one block after the other, because starting a context costs two system calls.
struct Fiber {
  Fiber();
  ~Fiber();
  struct Start;  // what ucontext.h needs
  std::unique_ptr<Start> start;
  std::unique_ptr<char[]> memory;
  std::jmp_buf at;
  bool begun = false;
  // For the address sanitizer.
  const void* stack = nullptr;
  std::size_t bytes = 0;
  void* of_sanitizer = nullptr;
};

// Begins with run(), which first calls fiber_has_begun() and never returns. The tops of the stacks of fibers with different
// numbers are in different lines of the cache.
std::unique_ptr<Fiber> new_fiber(std::size_t number, void (*run)());
void fiber_has_begun();

// Continues at another fiber. Returns when some fiber continues at this one.
void switch_fibers(Fiber& from, Fiber& to);

}  // namespace ring_attention::emulator
