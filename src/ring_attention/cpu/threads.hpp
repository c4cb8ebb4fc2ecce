/// \file
/// Threads of one rank.
#pragma once

#include <functional>

#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// Cores that this process may use; at least 1.
[[nodiscard]] int usable_cores();

/// Calls work(task, worker) for the tasks 0 .. tasks-1, handed out one by one and in order to `threads` workers.
/// Worker 0 is the calling thread, which alone may send messages. With one thread no other starts.
/// What a worker throws is thrown here, after all have ended the task they are at; no further task begins.
void for_each_task(Index tasks, int threads, const std::function<void(Index task, int worker)>& work);

}  // namespace ring_attention
