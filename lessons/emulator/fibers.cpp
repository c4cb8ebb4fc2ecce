#ifdef __APPLE__
#define _XOPEN_SOURCE 700  // NOLINT: for ucontext.h
#define _DARWIN_C_SOURCE   // NOLINT
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
#endif

#include "emulator/fibers.hpp"

#include <ucontext.h>

// The address sanitizer has to know on which stack a thread runs.
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#else
namespace {
void __sanitizer_start_switch_fiber(void**, const void*, std::size_t) {}
void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*) {}
}  // namespace
#endif

namespace ring_attention::emulator {
namespace {

constexpr std::size_t stack_bytes = 256 * 1024;

Fiber* previous = nullptr;

}  // namespace

struct Fiber::Start {
  ucontext_t context;
};
Fiber::Fiber() = default;
Fiber::~Fiber() = default;

__attribute__((noinline)) std::unique_ptr<Fiber> new_fiber(std::size_t number, void (*run)()) {
  auto fiber = std::make_unique<Fiber>();
  fiber->start = std::make_unique<Fiber::Start>();
  ucontext_t& start = fiber->start->context;
  fiber->memory.reset(new char[stack_bytes]);  // not initialised: most pages are never used
  fiber->stack = fiber->memory.get();
  fiber->bytes = stack_bytes - number * 5 % 64 * 64;
  getcontext(&start);
  start.uc_stack.ss_sp = fiber->memory.get();
  start.uc_stack.ss_size = fiber->bytes;
  start.uc_link = nullptr;
  makecontext(&start, run, 0);
  return fiber;
}

void fiber_has_begun() { __sanitizer_finish_switch_fiber(nullptr, &previous->stack, &previous->bytes); }

__attribute__((noinline)) void switch_fibers(Fiber& from, Fiber& to) {
  previous = &from;
  __sanitizer_start_switch_fiber(&from.of_sanitizer, to.stack, to.bytes);
  if (_setjmp(from.at) == 0) {
    if (to.begun) _longjmp(to.at, 1);
    to.begun = true;
    setcontext(&to.start->context);
  }
  __sanitizer_finish_switch_fiber(from.of_sanitizer, &previous->stack, &previous->bytes);
}

}  // namespace ring_attention::emulator
