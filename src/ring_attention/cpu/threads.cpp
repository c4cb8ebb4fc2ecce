#include "ring_attention/cpu/threads.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <thread>
#include <vector>

namespace ring_attention {

int usable_cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

void for_each_task(Index tasks, int threads, const std::function<void(Index, int)>& work) {
  std::atomic<Index> next{0};
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(threads));
  const auto run = [&](int worker) {
    try {
      for (Index task = next++; task < tasks; task = next++) work(task, worker);
    } catch (...) {
      failures[static_cast<std::size_t>(worker)] = std::current_exception();
      next = tasks;  // the others begin no further task
    }
  };
  {
    // The end of the block waits for them. (LLVM's library has no std::jthread.)
    std::vector<std::future<void>> others;
    for (int worker = 1; worker < std::min<Index>(threads, tasks); ++worker)
      others.push_back(std::async(std::launch::async, run, worker));
    run(0);
  }
  for (const std::exception_ptr& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

}  // namespace ring_attention
