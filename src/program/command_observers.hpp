/// \file
/// `CommandObservers`: who is told what a rank of a command does.
#pragma once

#include "program/activity_observer.hpp"
#include "program/trace/trace_observer.hpp"

namespace ring_attention {

/// The watchdog's observer, and a trace's where there is a trace.
class CommandObservers {
 public:
  /// \param trace  null: none  \param grid, describes  as of TraceObserver
  CommandObservers(Activity& activity, Trace* trace, const std::optional<RankGrid>& grid = {},
                   bool describes = true)
      : activity_(activity) {
    if (trace != nullptr) trace_.emplace(*trace, grid, describes);
  }
  CommandObservers(const CommandObservers&) = delete;
  CommandObservers& operator=(const CommandObservers&) = delete;

  [[nodiscard]] Observers all() {
    Observers all = of_trace();
    all.push_back(&activity_);
    return all;
  }
  [[nodiscard]] Observers of_trace() { return trace_ ? Observers{&*trace_} : Observers{}; }

 private:
  ActivityObserver activity_;
  std::optional<TraceObserver> trace_;
};

}  // namespace ring_attention
