/// \file
/// What is told what a rank of a command does: the watchdog, and a trace where there is one.
#pragma once

#include "cli/command_line.hpp"
#include "io/trace_file.hpp"
#include "program/activity_observer.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/mpi/host.hpp"
#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"

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

/// Slices of the time that a rank reads, checks and writes, for as long as this object lives.
class TracedPhases : public PhaseObserver {
 public:
  TracedPhases(Activity& activity, Trace& trace) : activity_(activity), trace_(trace) {
    activity_.observe(this);
  }
  TracedPhases(const TracedPhases&) = delete;
  TracedPhases& operator=(const TracedPhases&) = delete;
  ~TracedPhases() override {
    activity_.observe(nullptr);
    leave();
  }
  void enters(Phase phase) override {
    if (trace_.is_paused()) return;
    leave();
    if (phase != Phase::read && phase != Phase::check && phase != Phase::write) return;
    trace_.begin(Track::job, name(phase));
    in_phase_ = true;
  }

 private:
  void leave() {
    if (std::exchange(in_phase_, false)) trace_.end(Track::job);
  }

  Activity& activity_;
  Trace& trace_;
  bool in_phase_ = false;
};

/// work(trace), with a trace in `file`, or with null where `file` is empty. Collective; returns what `work` returns.
int with_trace(const Communicator& comm, const std::string& file, Activity& activity, const auto& work) {
  if (file.empty()) return work(static_cast<Trace*>(nullptr));
  std::optional<TraceFile> traced;
  name_flag("--trace", [&] {
    traced.emplace(std::make_unique<MpiAllToAll>(comm), file, all_gather(comm, host_group(comm).first));
  });
  const auto join = [&] { name_flag("--trace", [&] { traced->join(); }); };
  int code = 0;
  try {
    const TracedPhases phases(activity, traced->trace());
    code = work(&traced->trace());
  } catch (const AgreedError&) {  // of all ranks
    join();
    throw;
  }
  join();
  return code;
}

}  // namespace ring_attention
