#include "program/trace/traced_links.hpp"

#include <utility>

#include "ring_attention/core/text.hpp"
#include "ring_attention/ring/transports/adapter.hpp"

namespace ring_attention {
namespace {

class TracedTransport : public TransportAdapter {
 public:
  TracedTransport(std::unique_ptr<Transport> transport, const TracedGroup& where)
      : TransportAdapter(std::move(transport)), where_(where) {}

  void start(const Exchange& exchange) override {
    const Ring own = ring();
    const double at = where_.trace.now();
    where_.trace.begin(where_.track, "hop",
                       format("\"hop\":%d,\"owner\":%d,\"to\":%d,\"from\":%d,\"send\":%zu,\"receive\":%zu",
                              hop_ + 1, where_.at(own.owner(hop_)), where_.at(own.next()),
                              where_.at(own.prev()), exchange.send.size(), exchange.receive.size()),
                       at);
    ++hop_;
    if (!exchange.send.empty()) where_.trace.sends(where_.track, where_.at(own.next()), at);
    receives_ = !exchange.receive.empty();
    TransportAdapter::start(exchange);
  }
  void finish() override {
    const double begin = where_.trace.now();
    where_.trace.begin(where_.track, "wait", "", begin);
    TransportAdapter::finish();
    const double end = begin + waited() * 1e6;
    where_.trace.end(where_.track, end);
    const double here = where_.trace.now();
    if (receives_) where_.trace.receives(where_.track, where_.at(ring().prev()), here);
    where_.trace.end(where_.track, here);
  }
  /// A GPU counts its waits here.
  void drain() override {
    TransportAdapter::drain();
    if (const double seconds = waited(); seconds > 0)
      where_.trace.mark(where_.track, "waited on the device", format("\"wait_us\":%.3f", seconds * 1e6));
  }

 private:
  /// Seconds that the transport has counted since the last call.
  double waited() {
    const double all = statistics().exposed_seconds;
    return all - std::exchange(exposed_, all);
  }

  TracedGroup where_;
  int hop_ = 0;
  bool receives_ = false;
  double exposed_ = 0;
};

class TracedAllToAll : public AllToAllAdapter {
 public:
  TracedAllToAll(AllToAll& group, const TracedGroup& where) : AllToAllAdapter(group), where_(where) {}
  TracedAllToAll(std::unique_ptr<AllToAll> group, const TracedGroup& where)
      : AllToAllAdapter(*group), own_(std::move(group)), where_(where) {}

  void exchange(const Pieces& pieces) override {
    if (size() == 1) {
      AllToAllAdapter::exchange(pieces);
      return;
    }
    const double begin = where_.trace.now(), exposed = statistics().exposed_seconds;
    where_.trace.begin(
        where_.track, "exchange",
        format("\"send\":%lld,\"receive\":%lld", static_cast<long long>(bytes_of_others(pieces.send, rank())),
               static_cast<long long>(bytes_of_others(pieces.receive, rank()))),
        begin);
    for_others(pieces.send, [&](int other) { where_.trace.sends(where_.track, other, begin); });
    const double wait = where_.trace.now();
    where_.trace.begin(where_.track, "wait", "", wait);
    AllToAllAdapter::exchange(pieces);
    where_.trace.end(where_.track, wait + (statistics().exposed_seconds - exposed) * 1e6);
    const double here = where_.trace.now();
    for_others(pieces.receive, [&](int other) { where_.trace.receives(where_.track, other, here); });
    where_.trace.end(where_.track, here);
  }

 private:
  /// Calls use(rank of the job) for each piece of another rank that is not empty.
  void for_others(const auto& pieces, const auto& use) const {
    for (int other = 0; other < size(); ++other)
      if (other != rank() && !pieces[static_cast<std::size_t>(other)].empty()) use(where_.at(other));
  }

  std::unique_ptr<AllToAll> own_;
  TracedGroup where_;
};

}  // namespace

std::unique_ptr<AllToAll> traced(AllToAll& group, const TracedGroup& where) {
  return std::make_unique<TracedAllToAll>(group, where);
}
std::unique_ptr<Transport> traced(std::unique_ptr<Transport> transport, const TracedGroup& where) {
  return std::make_unique<TracedTransport>(std::move(transport), where);
}

TracedLinks::TracedLinks(Links& links, Trace& trace, const Axis& ulysses, const Axis& ring, int rank)
    : links_(links),
      trace_(trace),
      axis_(ring),
      rank_(rank),
      ring_(traced(links.ring(), {trace, Track::all_gather, ring, rank})),
      ulysses_(traced(links.ulysses(), {trace, Track::all_to_all, ulysses, rank})) {}

std::unique_ptr<Transport> TracedLinks::transport(Channel channel, std::size_t most_bytes) {
  const Track track = channel == Channel::kv ? Track::kv : Track::gradients;
  return traced(links_.transport(channel, most_bytes), {trace_, track, axis_, rank_});
}

std::unique_ptr<AllToAll> TracedLinks::group(const Axis& axis) {
  return std::make_unique<TracedAllToAll>(links_.group(axis),
                                          TracedGroup{trace_, Track::groups, axis, rank_});
}

}  // namespace ring_attention
