/// \file
/// Measures memory: the bytes that tensors hold, and those of the process.
#pragma once

#include "ring_attention/core/index.hpp"

namespace ring_attention {

/// Bytes that tensors hold, counted per thread: a rank of the loopback ring is a thread, a rank under
/// MPI is a process whose tensors all belong to one thread. The tests of the memory bounds use these counts.
namespace allocation {
/// The bytes of tensors that this thread has allocated, minus the bytes that it has freed.
[[nodiscard]] Index current();
/// The largest `current()` since the last `reset_peak()`.
[[nodiscard]] Index peak();
/// The number of allocations this thread has made: constant across a loop that allocates nothing.
[[nodiscard]] Index count();
void reset_peak();

/// From now on freed memory stays with the process, where the C library can do that (glibc). This is for a program that
/// allocates the same arrays again and again: otherwise the system takes large arrays back, and fills their pages with
/// zeros at the next allocation.
void keep_freed();

/// The largest memory of this process so far (resident set), in bytes.
[[nodiscard]] Index process_peak();
/// True if an allocation of `bytes` would succeed now; frees it untouched.
[[nodiscard]] bool available(Index bytes);
}  // namespace allocation

}  // namespace ring_attention
