#include "ring_attention/ring/transports/peers.hpp"

#include <chrono>

namespace ring_attention {

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
  const auto begin = std::chrono::steady_clock::now();
  statistics_.bytes_received += std::ssize(pending_.finish().receive);
  for (auto* const message : {&receive_, &send_}) {
    if (*message) (*message)->wait();
    message->reset();
  }
  const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
  statistics_.exposed_seconds += waited.count();
}

}  // namespace ring_attention
