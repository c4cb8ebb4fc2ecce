/// \file
/// Measures how long work on a GPU takes.
#pragma once

#include <vector>

#include "ring_attention/core/median.hpp"
#include "ring_attention/cuda/stream.hpp"

namespace ring_attention::cuda {

/// The median time in seconds of the work that `work` enqueues on the stream, with an event before and after it: once to
/// warm up, then `times` times.
[[nodiscard]] double time_on(StreamHandle stream, int times, const auto& work) {
  std::vector<double> seconds;
  for (int i = -1; i < times; ++i) {
    Event begin, end;
    begin.record(stream);
    work();
    end.record(stream);
    end.synchronize();
    if (i >= 0) seconds.push_back(end.seconds_since(begin));
  }
  return median(seconds);
}

/// The same for work of unknown length: once if it takes more than 0.2 seconds.
[[nodiscard]] double time_once_or(StreamHandle stream, int times, const auto& work) {
  const double first = time_on(stream, 1, work);
  return first > 0.2 ? first : time_on(stream, times, work);
}

}  // namespace ring_attention::cuda
