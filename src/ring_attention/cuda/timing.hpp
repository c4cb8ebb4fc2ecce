/// \file
/// Measures how long work on a GPU takes.
#pragma once

#include <algorithm>
#include <vector>

#include "ring_attention/core/median.hpp"
#include "ring_attention/cuda/stream.hpp"

namespace ring_attention::cuda {

/// The median, the shortest and the longest time, in seconds.
struct Times {
  double median, least, most;
};

/// Times the work that `work` enqueues on the stream, with an event before and after it: once to warm up, then `times`
/// times.
template <class Work>
[[nodiscard]] Times time_on(StreamHandle stream, int times, const Work& work) {
  std::vector<double> seconds;
  for (int i = -1; i < times; ++i) {
    Event begin, end;
    begin.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    if (i >= 0) seconds.push_back(end.seconds_since(begin));
  }
  const auto [least, most] = std::ranges::minmax(seconds);
  return {ring_attention::median(seconds), least, most};
}

}  // namespace ring_attention::cuda
