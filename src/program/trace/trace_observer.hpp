/// \file
/// `TraceObserver`: writes what a rank does to a trace.
#pragma once

#include <optional>
#include <utility>

#include "plan/ring_time.hpp"
#include "program/trace/trace.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/parallel/heads.hpp"

namespace ring_attention {

/// A step is a slice; on a GPU, the time in which the host enqueues it. K,V come in the order of a ring. A hop is a slice
/// from its start to the end of the wait, and the wait is a slice in it, as long as the transport counts it.
class TraceObserver : public Observer {
 public:
  /// \param trace  outlives this object
  /// \param grid   of the ranks of the job, where an attention has some of them; none: the attention's
  /// \param describes  each attention
  explicit TraceObserver(Trace& trace, const std::optional<RankGrid>& grid = {}, bool describes = true)
      : trace_(trace), job_(grid), describes_(describes), grid_(grid.value_or(RankGrid(0, 1, 1))) {}

  void shares(const SharedAttention& shared) override {
    grid_ = job_.value_or(shared.grid);
    SharedAttention of_job = shared;
    of_job.grid = grid_;
    if (describes_) trace_.describe(of_job);
    heads_ = HeadShare(shared.q.heads, shared.kv.heads, grid_.ulysses.size)
                 .query[static_cast<std::size_t>(grid_.ulysses.index(grid_.rank))];
  }

  void computes(const Pass& pass) override {
    mask_ = pass.mask;
    queries_ = pass.queries;
    trace_.mark(Track::compute, pass.name,
                format("\"queries\":%s,\"heads\":[%lld,%lld]", json_of(queries_).c_str(),
                       static_cast<long long>(heads_.begin), static_cast<long long>(heads_.end)));
  }
  void step(int number, const TokenRanges& keys) override {
    const int owner = rank_at(grid_.ring.ring(grid_.rank).owner(number));
    trace_.begin(Track::compute, format("K,V of %d", owner),
                 format("\"step\":%d,\"owner\":%d,\"keys\":%s,\"pairs\":%lld", number, owner,
                        json_of(keys).c_str(), static_cast<long long>(visible_pairs(mask_, queries_, keys))));
  }
  void begins(const char* part) override { trace_.begin(Track::compute, part); }
  void ends() override { trace_.end(Track::compute); }

  void starts(const ObservedHop& hop) override {
    const double at = trace_.now();
    const int to = rank_at(hop.ring.next());
    trace_.begin(track(hop.channel), "hop",
                 format("\"hop\":%d,\"owner\":%d,\"to\":%d,\"from\":%d,\"send\":%zu,\"receive\":%zu",
                        hop.number + 1, rank_at(hop.ring.owner(hop.number)), to, rank_at(hop.ring.prev()),
                        hop.bytes.send.size(), hop.bytes.receive.size()),
                 at);
    if (!hop.bytes.send.empty()) trace_.sends(track(hop.channel), to, at);
  }
  void waits(const ObservedHop& hop) override { begin_wait(track(hop.channel)); }
  void arrived(const ObservedHop& hop, double waited) override {
    const double here = end_wait(track(hop.channel), waited);
    if (!hop.bytes.receive.empty()) trace_.receives(track(hop.channel), rank_at(hop.ring.prev()), here);
    trace_.end(track(hop.channel), here);
  }
  /// A GPU counts its waits here.
  void drained(Channel channel, double waited) override {
    if (waited > 0)
      trace_.mark(track(channel), "waited on the device", format("\"wait_us\":%.3f", waited * 1e6));
  }

  void exchanges(const PieceExchange& what) override {
    if (what.pieces.send.size() == 1) return;
    const double at = trace_.now();
    trace_.begin(track(what), "exchange",
                 format("\"send\":%lld,\"receive\":%lld",
                        static_cast<long long>(bytes_of_others(what.pieces.send, what.rank)),
                        static_cast<long long>(bytes_of_others(what.pieces.receive, what.rank))),
                 at);
    for_others(what, what.pieces.send, [&](int other) { trace_.sends(track(what), other, at); });
    begin_wait(track(what));
  }
  void exchanged(const PieceExchange& what, double waited) override {
    if (what.pieces.send.size() == 1) return;
    const double here = end_wait(track(what), waited);
    for_others(what, what.pieces.receive, [&](int other) { trace_.receives(track(what), other, here); });
    trace_.end(track(what), here);
  }

 private:
  [[nodiscard]] static Track track(Channel channel) {
    return channel == Channel::kv ? Track::kv : Track::gradients;
  }
  [[nodiscard]] static Track track(const PieceExchange& what) {
    return what.along == PieceExchange::Along::ulysses ? Track::all_to_all
           : what.along == PieceExchange::Along::ring  ? Track::all_gather
                                                       : Track::groups;
  }
  /// A rank of the job, from its place in the ring.
  [[nodiscard]] int rank_at(int index) const { return grid_.ring.at(grid_.rank, index); }

  void begin_wait(Track track) {
    wait_ = trace_.now();
    trace_.begin(track, "wait", "", wait_);
  }
  double end_wait(Track track, double waited) {
    trace_.end(track, wait_ + waited * 1e6);
    return trace_.now();
  }
  /// Calls use(rank of the job) for each piece of another rank that is not empty.
  void for_others(const PieceExchange& what, const auto& pieces, const auto& use) const {
    const Axis& group = what.along == PieceExchange::Along::ulysses ? grid_.ulysses
                        : what.along == PieceExchange::Along::ring  ? grid_.ring
                                                                    : what.axis;
    for (int other = 0; other < static_cast<int>(pieces.size()); ++other)
      if (other != what.rank && !pieces[static_cast<std::size_t>(other)].empty())
        use(group.at(grid_.rank, other));
  }

  Trace& trace_;
  std::optional<RankGrid> job_;
  bool describes_;
  RankGrid grid_;
  Interval heads_;
  Mask mask_;
  TokenRanges queries_;
  double wait_ = 0;
};

/// One query over the keys of this rank. \param attend  computes it
auto traced_decoding(Trace& trace, const TokenRanges& keys, const TokenRanges& query, const Mask& mask,
                     const auto& attend) {
  trace.begin(Track::compute, "own K,V",
              format("\"queries\":%s,\"keys\":%s,\"pairs\":%lld", json_of(query).c_str(),
                     json_of(keys).c_str(), static_cast<long long>(visible_pairs(mask, query, keys))));
  auto state = attend();
  trace.end(Track::compute);
  return state;
}

}  // namespace ring_attention
