#include "ring_attention/cpu/threads.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace ring_attention {

int usable_cores() { return static_cast<int>(std::max(1U, std::thread::hardware_concurrency())); }

void for_each_task(Index tasks, int threads, const std::function<void(Index, int)>& work) {
  std::atomic<Index> next{0};
  const auto run = [&](int worker) {
    for (Index task = next++; task < tasks; task = next++) work(task, worker);
  };
  std::vector<std::jthread> others;  // joined at the end, also when worker 0 throws
  for (int worker = 1; worker < std::min<Index>(threads, tasks); ++worker) others.emplace_back(run, worker);
  run(0);
}

}  // namespace ring_attention
