// Plain stores of the Hopper kernels to shared memory. The compiler inserts a call before each store
// (-fsanitize=kernel-address), and these functions take the place of the sanitizer's.

#include "emulator/proxies.hpp"

namespace {

void stored(const void* at, std::size_t bytes) {
  using namespace ring_attention::emulator;  // NOLINT: the rest has names of the compiler
  if (is_shared(at)) unfenced_stores().store(shared_address(at), static_cast<unsigned>(bytes));
}

}  // namespace

extern "C" {
void __asan_store1_noabort(const void* at) { stored(at, 1); }
void __asan_store2_noabort(const void* at) { stored(at, 2); }
void __asan_store4_noabort(const void* at) { stored(at, 4); }
void __asan_store8_noabort(const void* at) { stored(at, 8); }
void __asan_store16_noabort(const void* at) { stored(at, 16); }
void __asan_storeN_noabort(const void* at, std::size_t bytes) { stored(at, bytes); }
void __asan_handle_no_return() {}
void __asan_before_dynamic_init(const void*) {}
void __asan_after_dynamic_init() {}
}
