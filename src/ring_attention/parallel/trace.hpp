/// \file
/// `Trace`: what a rank does and when, as text that Perfetto and Chrome read. `TraceObserver`: writes what a ContextParallel
/// does to one.
///
/// Source: Google, Trace Event Format: B and E begin and end a slice, i is an instant, s and f are the ends of an arrow,
/// M is metadata; `ts` in microseconds, `pid` is the rank, `tid` the Track.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/observer.hpp"

namespace ring_attention {

/// Seconds of this machine's clock, which never goes back. Clocks of two machines differ by any amount.
[[nodiscard]] double clock_seconds();

/// What to add to clock_seconds() of this rank for the clock of rank 0.
struct ClockOffset {
  double seconds = 0;     ///< 0 on the ranks that share rank 0's clock
  double round_trip = 0;  ///< of the fastest message that was exchanged; the error is at most half of it
};

/// A line of a rank, with slices one after the other.
enum class Track : std::uint8_t { job, compute, kv, gradients, all_to_all, all_gather, groups };

/// `[[0,1,8],[24,1,8]]`: begin, stride and count of each range.
[[nodiscard]] std::string json_of(const TokenRanges& ranges);

/// Each event is written at once: an array without its end, which the readers accept.
class Trace {
 public:
  /// \param rank, ranks  of the job
  /// \param write        gets each piece of the text
  /// \param offset       of this rank's clock  \param start  of the trace, by rank 0's clock
  Trace(int rank, int ranks, std::function<void(const std::string&)> write, const ClockOffset& offset = {},
        double start = clock_seconds());

  [[nodiscard]] double now() const { return (clock_seconds() + offset_ - start_) * 1e6; }

  /// `arguments`: `"step":0,"owner":2`, or empty. `at`: now(), or a time before it.
  void begin(Track track, const std::string& name, const std::string& arguments = "") {
    begin(track, name, arguments, now());
  }
  void begin(Track track, const std::string& name, const std::string& arguments, double at);
  void end(Track track) { end(track, now()); }
  void end(Track track, double at);
  void mark(Track track, const std::string& name, const std::string& arguments = "");
  /// The n-th message to a rank on a track is the n-th that this rank receives there. The arrow begins and ends in slices.
  /// `to`, `from`: ranks of the job.
  void sends(Track track, int to, double at);
  void receives(Track track, int from, double at);
  /// Writes no event until pause(false). Every rank pauses at the same place, with no message under way.
  void pause(bool paused) { paused_ = paused; }
  [[nodiscard]] bool is_paused() const { return paused_; }
  /// Which query sees which key, in at most 32 x 32 cells, and how ranks divide it: for who draws it.
  void describe(const SharedAttention& shared);

 private:
  /// \param rest  of the event, behind name and phase
  void write(const char* phase, const std::string& name, double at, Track track, const std::string& rest);
  /// At the first event of a line.
  void name_line(Track track);
  void metadata(const std::string& name, const std::string& arguments);
  void arrow(const char* end, Track track, int from, int to, double at, Index number);

  int rank_, ranks_;
  std::function<void(const std::string&)> write_;
  double offset_, start_;
  const char* separator_ = "\n";
  bool paused_ = false;
  std::array<bool, 7> named_{};
  std::map<std::pair<Track, int>, Index> sent_, received_;  // with a rank so far
};

/// A step is a slice; on a GPU, the time in which the host enqueues it. K,V come in the order of a ring. A hop is a slice
/// from its start to the end of the wait, and the wait is a slice in it, as long as the transport counts it.
class TraceObserver : public Observer {
 public:
  /// \param trace  outlives this object
  /// \param grid   of the ranks of the job, where an attention has some of them; none: the attention's
  /// \param describes  each attention
  explicit TraceObserver(Trace& trace, const std::optional<RankGrid>& grid = {}, bool describes = true)
      : trace_(trace), job_(grid), describes_(describes), grid_(grid.value_or(RankGrid(0, 1, 1))) {}

  void shares(const SharedAttention& shared) override;
  void computes(const Pass& pass) override;
  void step(int number, const TokenRanges& keys) override;
  void begins(const char* part) override { trace_.begin(Track::compute, part); }
  void ends() override { trace_.end(Track::compute); }
  void starts(const ObservedHop& hop) override;
  void waits(const ObservedHop& hop) override;
  void arrived(const ObservedHop& hop, double waited) override;
  /// A GPU counts its waits here.
  void drained(Channel channel, double waited) override;
  void exchanges(const PieceExchange& what) override;
  void exchanged(const PieceExchange& what, double waited) override;

 private:
  /// A rank of the job, from its place in the ring.
  [[nodiscard]] int rank_at(int index) const { return grid_.ring.at(grid_.rank, index); }
  void begin_wait(Track track);
  double end_wait(Track track, double waited);
  /// Calls use(rank of the job) for each piece of another rank that is not empty.
  void for_others(const PieceExchange& what, const auto& pieces, const auto& use) const;

  Trace& trace_;
  std::optional<RankGrid> job_;
  bool describes_;
  RankGrid grid_;
  Interval heads_;
  Mask mask_;
  TokenRanges queries_;
  double wait_ = 0;
};

}  // namespace ring_attention
