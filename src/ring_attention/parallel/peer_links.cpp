#include "ring_attention/parallel/peer_links.hpp"

#include <algorithm>
#include <chrono>

namespace ring_attention {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

void PeerTransport::start(const Hop& hop) {
  pending_.start(hop);
  const Ring here = ring();
  const auto rank_of = [&](int index) { return axis_.at(peers_.rank(), index); };
  if (!hop.receive.empty()) receive_ = peers_.receive(hop.receive, rank_of(here.prev()), tag_);
  if (hop.send.empty()) return;
  send_ = peers_.send(hop.send, rank_of(here.next()), tag_);
  ++statistics_.messages_sent;
  statistics_.bytes_sent += std::ssize(hop.send);
}

void PeerTransport::finish() {
  const auto begin = Clock::now();
  statistics_.bytes_received += std::ssize(pending_.finish().receive);
  for (auto* const message : {&receive_, &send_}) {
    if (*message) (*message)->wait();
    message->reset();
  }
  statistics_.exposed_seconds += seconds_since(begin);
}

void PeerAllToAll::all_to_all(const Pieces& pieces) {
  require_pieces(pieces, rank(), size());
  const auto begin = Clock::now();
  constexpr int tag = 2;  // 0 and 1 are the rings'
  std::vector<std::unique_ptr<Peers::Message>> messages;
  for (int index = 0; index < size(); ++index) {
    const auto piece = static_cast<std::size_t>(index);
    const int other = axis_.at(peers_.rank(), index);
    if (index == rank()) {
      std::ranges::copy(pieces.send[piece], pieces.receive[piece].begin());
      continue;
    }
    if (!pieces.receive[piece].empty()) messages.push_back(peers_.receive(pieces.receive[piece], other, tag));
    if (!pieces.send[piece].empty()) messages.push_back(peers_.send(pieces.send[piece], other, tag));
  }
  for (const auto& message : messages) message->wait();
  count_exchange(statistics_, pieces, rank(), seconds_since(begin));
}

}  // namespace ring_attention
