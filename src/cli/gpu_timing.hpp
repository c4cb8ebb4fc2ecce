/// \file
/// Measures how long work on a GPU takes.
#pragma once

#include <vector>

#include "cli/median.hpp"
#include "ring_attention/cuda/stream.hpp"

namespace ring_attention::cuda {

/// The median time in seconds of the work that `work` enqueues on the stream, with an event before and after it: once to
/// warm up, then `times` times. All of it is enqueued before the host waits. So the GPU is busy with the previous call
/// while the host prepares the next, and the time of the host is not measured, unless it is the longer one.
[[nodiscard]] double time_on(StreamHandle stream, int times, const auto& work) {
  std::vector<Event> events(static_cast<std::size_t>(times) + 1);  // the ends of all calls
  for (Event& end : events) {
    work();
    end.record(stream);
  }
  events.back().synchronize();
  std::vector<double> seconds;
  for (std::size_t i = 1; i < events.size(); ++i) seconds.push_back(events[i].seconds_since(events[i - 1]));
  return median(seconds);
}

/// The median time of work of unknown length: one call if it takes more than 0.2 seconds.
[[nodiscard]] double time_once_or(StreamHandle stream, int times, const auto& work) {
  const double first = time_on(stream, 1, work);
  return first > 0.2 ? first : time_on(stream, times, work);
}

}  // namespace ring_attention::cuda
