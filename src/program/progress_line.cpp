#include "program/progress_line.hpp"

#include <unistd.h>

#include <cstdio>

#include "cli/table.hpp"

namespace ring_attention {

ProgressLine::ProgressLine(const Activity& activity, int steps, const std::string& when)
    : activity_(activity) {
  if (when == "always" || (when == "auto" && isatty(STDERR_FILENO) == 1))
    thread_ = std::thread([this, steps] { show(steps); });
}

ProgressLine::~ProgressLine() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_one();
  thread_.join();
}

void ProgressLine::show(int steps) {
  const auto begin = std::chrono::steady_clock::now();
  bool shown = false;
  std::unique_lock lock(mutex_);
  while (!stopped_.wait_for(lock, std::chrono::milliseconds(500), [this] { return stop_; })) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
    if (elapsed.count() < 1) continue;
    const double expected = activity_.expected();
    std::fprintf(stderr, "\r\033[K%s of %d steps, %.0f s%s", activity_.describe().c_str(), steps,
                 elapsed.count(), expected > 0 ? (" of about " + human_seconds(expected)).c_str() : "");
    shown = true;
  }
  if (shown) std::fputs("\r\033[K", stderr);
}

}  // namespace ring_attention
