/// \file
/// One `ring-attention run`: read, forward, backward, check, write.
#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "program/run/attention.hpp"

namespace ring_attention {

/// Seconds of the slowest rank since its construction or the last lap.
class Stopwatch {
 public:
  explicit Stopwatch(const Communicator& comm) : comm_(comm) {}
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return max_over_ranks(comm_, std::chrono::duration<double>(now - std::exchange(last_, now)).count());
  }

 private:
  const Communicator& comm_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// One run; returns the exit code. Collective.
template <class T>
int run_job(const RunContext& context, std::unique_ptr<AnyAttention<T>> attention);

template <Backend Device>
int run_on(const RunContext& context) {
  return run_job<typename Device::Value>(context, std::make_unique<RunAttention<Device>>(context));
}

}  // namespace ring_attention
