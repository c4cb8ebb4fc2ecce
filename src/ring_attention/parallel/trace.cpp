#include "ring_attention/parallel/trace.hpp"

#include <algorithm>
#include <chrono>

#include "ring_attention/attention/visible_pairs.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

constexpr std::array track_names{"job",        "compute",    "K,V",         "dK,dV",
                                 "all-to-all", "all-gather", "other groups"};  // in the order of Track

const char* name_of(Track track) { return track_names.at(static_cast<std::size_t>(track)); }

Track track_of(Channel channel) { return channel == Channel::kv ? Track::kv : Track::gradients; }

Track track_of(const PieceExchange& what) {
  return what.along == PieceExchange::Along::ulysses ? Track::all_to_all
         : what.along == PieceExchange::Along::ring  ? Track::all_gather
                                                     : Track::groups;
}

/// Tokens of one of at most 32 cells; the last may have fewer.
Index cell_of(Index tokens) { return (tokens + 31) / 32; }

std::vector<TokenRange> cells_of(Index tokens) {
  std::vector<TokenRange> all;
  const Index cell = cell_of(tokens);
  for (Index begin = 0; begin < tokens; begin += cell)
    all.push_back({begin, 1, std::min(cell, tokens - begin)});
  return all;
}

}  // namespace

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string json_of(const TokenRanges& ranges) {
  std::string text = "[";
  for (const TokenRange& range : ranges)
    text += format("%s[%lld,%lld,%lld]", text.size() > 1 ? "," : "", static_cast<long long>(range.begin),
                   static_cast<long long>(range.stride), static_cast<long long>(range.count));
  return text + "]";
}

Trace::Trace(int rank, int ranks, std::function<void(const std::string&)> write, const ClockOffset& offset,
             double start)
    : rank_(rank), ranks_(ranks), write_(std::move(write)), offset_(offset.seconds), start_(start) {
  write_("[");
  metadata("process_name", format("\"name\":\"rank %d\"", rank_));
  metadata("process_sort_index", format("\"sort_index\":%d", rank_));
  metadata("clock", format("\"offset_us\":%.3f,\"round_trip_us\":%.3f", offset.seconds * 1e6,
                           offset.round_trip * 1e6));
}

void Trace::write(const char* phase, const std::string& name, double at, Track track,
                  const std::string& rest) {
  if (paused_) return;
  const std::string named = name.empty() ? "" : ",\"name\":\"" + name + "\"";
  write_(format("%s{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f%s%s}", separator_, phase, rank_,
                static_cast<int>(track), at, named.c_str(), rest.c_str()));
  separator_ = ",\n";
}

void Trace::metadata(const std::string& name, const std::string& arguments) {
  write("M", name, 0, Track::job, ",\"args\":{" + arguments + "}");
}

void Trace::begin(Track track, const std::string& name, const std::string& arguments, double at) {
  name_line(track);
  write("B", name, at, track, arguments.empty() ? "" : ",\"args\":{" + arguments + "}");
}

void Trace::end(Track track, double at) { write("E", "", at, track, ""); }

void Trace::mark(Track track, const std::string& name, const std::string& arguments) {
  name_line(track);
  write("i", name, now(), track, ",\"s\":\"t\",\"args\":{" + arguments + "}");
}

void Trace::name_line(Track track) {
  bool& named = named_.at(static_cast<std::size_t>(track));
  if (!paused_ && !std::exchange(named, true))
    write("M", "thread_name", 0, track, format(",\"args\":{\"name\":\"%s\"}", name_of(track)));
}

void Trace::arrow(const char* end, Track track, int from, int to, double at, Index number) {
  const Index pair = static_cast<Index>(from) * ranks_ + to, most = Index{1} << 24U;
  const Index id = pair * most + number;
  write(end, "message", at, track,
        format(",\"cat\":\"%s\",\"id\":%lld%s", name_of(track), static_cast<long long>(id),
               *end == 'f' ? ",\"bp\":\"e\"" : ""));
}
void Trace::sends(Track track, int to, double at) { arrow("s", track, rank_, to, at, sent_[{track, to}]++); }
void Trace::receives(Track track, int from, double at) {
  arrow("f", track, from, rank_, at, received_[{track, from}]++);
}

void Trace::describe(const SharedAttention& shared) {
  if (paused_) return;
  const Mask& mask = shared.scoring.mask;
  std::string cells;
  for (const TokenRange& queries : cells_of(shared.q.seq)) {
    cells += cells.empty() ? "\"" : "\",\"";
    for (const TokenRange& keys : cells_of(shared.kv.seq)) {
      const Coverage seen = mask.coverage(queries, keys);
      cells += seen == Coverage::none ? '.' : seen == Coverage::full ? '#' : '+';
    }
  }
  const auto& [ring, ulysses] = std::pair(shared.grid.ring, shared.grid.ulysses);
  const char* partition = ulysses.size == 1 ? shared.division.kv : ring.size == 1 ? "ulysses" : "hybrid";
  metadata(
      "attention",
      format(
          "\"queries\":%lld,\"keys\":%lld,\"heads\":%lld,\"ranks\":%d,\"ring\":%d,\"ulysses\":%d,"
          "\"partition\":\"%s\",\"placement\":\"%s\",\"query_cell\":%lld,\"key_cell\":%lld,\"cells\":[%s\"]",
          static_cast<long long>(shared.q.seq), static_cast<long long>(shared.kv.seq),
          static_cast<long long>(shared.q.heads), ranks_, ring.size, ulysses.size, partition,
          name(shared.tokens.queries.kind()).c_str(), static_cast<long long>(cell_of(shared.q.seq)),
          static_cast<long long>(cell_of(shared.kv.seq)), cells.c_str()));
}

void TraceObserver::shares(const SharedAttention& shared) {
  grid_ = job_.value_or(shared.grid);
  SharedAttention of_job = shared;
  of_job.grid = grid_;
  if (describes_) trace_.describe(of_job);
  const Index own = shared.q.heads / grid_.ulysses.size, first = grid_.ulysses.index(grid_.rank) * own;
  heads_ = {first, first + own};
}

void TraceObserver::computes(const Pass& pass) {
  mask_ = pass.mask;
  queries_ = pass.queries;
  trace_.mark(Track::compute, pass.name,
              format("\"queries\":%s,\"heads\":[%lld,%lld]", json_of(queries_).c_str(),
                     static_cast<long long>(heads_.begin), static_cast<long long>(heads_.end)));
}

void TraceObserver::step(int number, const TokenRanges& keys) {
  const int owner = rank_at(grid_.ring.ring(grid_.rank).owner(number));
  trace_.begin(Track::compute, format("K,V of %d", owner),
               format("\"step\":%d,\"owner\":%d,\"keys\":%s,\"pairs\":%lld", number, owner,
                      json_of(keys).c_str(), static_cast<long long>(visible_pairs(mask_, queries_, keys))));
}

void TraceObserver::starts(const ObservedHop& hop) {
  const double at = trace_.now();
  const int to = rank_at(hop.ring.next());
  trace_.begin(track_of(hop.channel), "hop",
               format("\"hop\":%d,\"owner\":%d,\"to\":%d,\"from\":%d,\"send\":%zu,\"receive\":%zu",
                      hop.number + 1, rank_at(hop.ring.owner(hop.number)), to, rank_at(hop.ring.prev()),
                      hop.bytes.send.size(), hop.bytes.receive.size()),
               at);
  if (!hop.bytes.send.empty()) trace_.sends(track_of(hop.channel), to, at);
}

void TraceObserver::waits(const ObservedHop& hop) { begin_wait(track_of(hop.channel)); }

void TraceObserver::arrived(const ObservedHop& hop, double waited) {
  const double here = end_wait(track_of(hop.channel), waited);
  if (!hop.bytes.receive.empty()) trace_.receives(track_of(hop.channel), rank_at(hop.ring.prev()), here);
  trace_.end(track_of(hop.channel), here);
}

void TraceObserver::drained(Channel channel, double waited) {
  if (waited > 0)
    trace_.mark(track_of(channel), "waited on the device", format("\"wait_us\":%.3f", waited * 1e6));
}

void TraceObserver::for_others(const PieceExchange& what, const auto& pieces, const auto& use) const {
  const Axis& group = what.along == PieceExchange::Along::ulysses ? grid_.ulysses
                      : what.along == PieceExchange::Along::ring  ? grid_.ring
                                                                  : what.axis;
  for (int other = 0; other < static_cast<int>(pieces.size()); ++other)
    if (other != what.rank && !pieces[static_cast<std::size_t>(other)].empty())
      use(group.at(grid_.rank, other));
}

void TraceObserver::exchanges(const PieceExchange& what) {
  if (what.pieces.send.size() == 1) return;
  const double at = trace_.now();
  trace_.begin(track_of(what), "exchange",
               format("\"send\":%lld,\"receive\":%lld",
                      static_cast<long long>(bytes_of_others(what.pieces.send, what.rank)),
                      static_cast<long long>(bytes_of_others(what.pieces.receive, what.rank))),
               at);
  for_others(what, what.pieces.send, [&](int other) { trace_.sends(track_of(what), other, at); });
  begin_wait(track_of(what));
}

void TraceObserver::exchanged(const PieceExchange& what, double waited) {
  if (what.pieces.send.size() == 1) return;
  const double here = end_wait(track_of(what), waited);
  for_others(what, what.pieces.receive, [&](int other) { trace_.receives(track_of(what), other, here); });
  trace_.end(track_of(what), here);
}

void TraceObserver::begin_wait(Track track) {
  wait_ = trace_.now();
  trace_.begin(track, "wait", "", wait_);
}

double TraceObserver::end_wait(Track track, double waited) {
  trace_.end(track, wait_ + waited * 1e6);
  return trace_.now();
}

}  // namespace ring_attention
