/// \file
/// `Trace`: what each rank of a job does and when, in a file that Perfetto and Chrome open.
///
/// Source: Google, Trace Event Format: B and E begin and end a slice, i is an instant, s and f are the ends of an arrow,
/// M is metadata; `ts` in microseconds, `pid` is the rank, `tid` the Track.
#pragma once

#include <array>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "program/watchdog.hpp"
#include "ring_attention/mpi/clock.hpp"
#include "ring_attention/parallel/context_parallel.hpp"

namespace ring_attention {

/// A line of a rank, with slices one after the other.
enum class Track : std::uint8_t { job, compute, kv, gradients, all_to_all, all_gather, groups };

/// `[[0,1,8],[24,1,8]]`: begin, stride and count of each range.
[[nodiscard]] std::string json_of(const TokenRanges& ranges);

/// The ranks that share a trace. All functions are collective.
class TraceRanks {
 public:
  struct Machine {
    bool is_of_lower_rank;  ///< is a lower rank on the same machine?
    ClockOffset clock;
  };

  TraceRanks() = default;
  TraceRanks(const TraceRanks&) = delete;
  TraceRanks& operator=(const TraceRanks&) = delete;
  virtual ~TraceRanks() = default;

  [[nodiscard]] virtual AllToAll& all() = 0;
  /// Does what agree() of a communicator does.
  virtual void agree(const std::function<void()>& validate) = 0;
  [[nodiscard]] virtual Machine machine() = 0;
};

/// Each rank writes each event to a file of its own at once, FILE.rank0, FILE.rank1, ...: an array without its end, which
/// the readers accept. So the files of a job that dies, or still runs, can be read. join() makes one file of them; the
/// next job with the same FILE removes those of a job that died.
/// The clock is that of rank 0, from the construction on.
class Trace : public PhaseObserver {
 public:
  /// Collective. \throws AgreedError when a rank cannot write its file
  Trace(std::unique_ptr<TraceRanks> ranks, const std::string& file);
  /// \param comm  outlives this object
  Trace(const Communicator& comm, const std::string& file);

  [[nodiscard]] double now() const { return (clock_seconds() + offset_.seconds - start_) * 1e6; }

  /// \param arguments  `"step":0,"owner":2`, or empty  \param at  now(), or a time before it
  void begin(Track track, const std::string& name, const std::string& arguments = "") {
    begin(track, name, arguments, now());
  }
  void begin(Track track, const std::string& name, const std::string& arguments, double at);
  void end(Track track) { end(track, now()); }
  void end(Track track, double at);
  void mark(Track track, const std::string& name, const std::string& arguments = "");
  /// The n-th message to a rank on a track is the n-th that this rank receives there. The arrow begins and ends in slices.
  /// \param to, from  ranks of the job
  void sends(Track track, int to, double at);
  void receives(Track track, int from, double at);
  /// Writes no event until pause(false). Every rank pauses at the same place, with no message under way.
  void pause(bool paused) { paused_ = paused; }
  /// Which query sees which key, in at most 32 x 32 cells, and how ranks divide it: for who draws it.
  void describe(const SharedAttention& shared);

  /// Slices of the time that a rank reads, checks and writes.
  void enters(Phase phase) override;

  /// One file of all ranks'; those of the ranks go. Collective.
  void join();

 private:
  struct Close {
    void operator()(std::FILE* file) const { (void)std::fclose(file); }
  };

  /// Removes the files of a killed job, before a rank opens its own.
  void remove_leftovers();
  void open();
  /// \param rest  of the event, behind name and phase
  void write(const char* phase, const std::string& name, double at, Track track, const std::string& rest);
  /// At the first event of a line.
  void name_line(Track track);
  void metadata(const std::string& name, const std::string& arguments);
  void arrow(const char* end, Track track, int from, int to, double at, Index number);

  std::unique_ptr<TraceRanks> ranks_;
  int rank_;
  std::string file_, own_file_;
  std::unique_ptr<std::FILE, Close> out_;
  ClockOffset offset_;
  double start_ = 0;
  const char* separator_ = "\n";
  bool in_phase_ = false, paused_ = false;
  std::array<bool, 7> named_{};
  std::map<std::pair<Track, int>, Index> sent_, received_;  // with a rank so far
};

/// work(trace), with a trace in `file`, or with null where `file` is empty. Collective; returns what `work` returns.
int with_trace(const Communicator& comm, const std::string& file, Activity& activity,
               const std::function<int(Trace*)>& work);

}  // namespace ring_attention
