/// \file
/// `TraceFile`: the trace of all ranks of a job in one file; and the clock on which its times are.
#pragma once

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ring_attention/parallel/trace.hpp"

namespace ring_attention {

/// For each rank the lowest rank on its machine, by the names of their machines. Collective.
[[nodiscard]] std::vector<int> machines_of(AllToAll& all);

/// Ranks of one machine share its clock, so they get the same offset: an estimate for each of them would differ by its
/// error, and a message could seem to arrive before it was sent. Rank 0 exchanges a few messages with the lowest rank of each
/// other machine, one after the other. The fastest one counts: the other rank is taken to answer in the middle of its round
/// trip.
///
/// Collective. Source: Cristian, Probabilistic clock synchronization, Distributed Computing 3 (1989).
/// \param machines  for each rank the lowest rank on its machine
/// \param now       this rank's clock
[[nodiscard]] ClockOffset clock_offset(AllToAll& all, const std::vector<int>& machines,
                                       double (*now)() = clock_seconds);

/// Each rank writes each event to a file of its own at once, FILE.rank0, FILE.rank1, ... So the files of a job that dies, or
/// still runs, can be read. join() makes one file of them; the next job with the same FILE removes those of a job that died,
/// and says so in a line on stderr. The clock is that of rank 0, from the construction on.
class TraceFile {
 public:
  /// Collective. \throws AgreedError when a rank cannot write its file
  /// \param all       of the ranks of the job
  /// \param machines  for each rank the lowest rank on its machine; empty: by their names
  TraceFile(std::unique_ptr<AllToAll> all, const std::string& file, std::vector<int> machines = {});
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  [[nodiscard]] Trace& trace() { return *trace_; }
  /// One file of all ranks'; those of the ranks go. Collective.
  void join();

 private:
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };

  void remove_leftovers() const;
  void open();

  std::unique_ptr<AllToAll> all_;
  std::string file_, own_file_;
  std::unique_ptr<std::FILE, Close> out_;
  std::optional<Trace> trace_;
};

}  // namespace ring_attention
