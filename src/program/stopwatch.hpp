/// \file
/// `Stopwatch`: seconds of the slowest rank.
#pragma once

#include <chrono>
#include <utility>

#include "ring_attention/mpi/collectives.hpp"

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

}  // namespace ring_attention
