/// \file
/// `PeerLinks`: the links of a rank over Peers, between arrays of the host.
#pragma once

#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/parallel/links.hpp"
#include "ring_attention/parallel/peers.hpp"
#include "ring_attention/ring/transports/pending_hop.hpp"

namespace ring_attention {

/// Messages that travel while the rank computes, if the peers move them then.
class PeerTransport : public Transport {
 public:
  /// \param peers  outlive this object  \param ring  the axis of the ring
  PeerTransport(Peers& peers, const Axis& ring, Channel channel)
      : peers_(peers), axis_(ring), tag_(static_cast<int>(channel)) {}

  [[nodiscard]] Ring ring() const override { return axis_.ring(peers_.rank()); }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }
  void start(const Hop& hop) override;
  void finish() override;
  void drain() override { pending_.require_idle(); }

 private:
  Peers& peers_;
  Axis axis_;
  int tag_;
  std::unique_ptr<Peers::Message> receive_, send_;
  PendingHop pending_;
  TransportStatistics statistics_;
};

/// The ranks along an axis.
class PeerAllToAll : public AllToAll {
 public:
  /// \param peers  outlive this object
  PeerAllToAll(Peers& peers, const Axis& axis) : peers_(peers), axis_(axis) {}

  [[nodiscard]] int rank() const override { return axis_.index(peers_.rank()); }
  [[nodiscard]] int size() const override { return axis_.size; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }
  void all_to_all(const Pieces& pieces) override;

 private:
  Peers& peers_;
  Axis axis_;
  TransportStatistics statistics_;
};

class PeerLinks : public Links {
 public:
  /// \param peers  outlive this object
  PeerLinks(Peers& peers, const Axis& ulysses, const Axis& ring)
      : peers_(peers), axis_(ring), ring_(peers, ring), ulysses_(peers, ulysses) {}

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t) override {
    return std::make_unique<PeerTransport>(peers_, axis_, channel);
  }
  [[nodiscard]] AllToAll& ring() override { return ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override {
    return std::make_unique<PeerAllToAll>(peers_, axis);
  }

 private:
  Peers& peers_;
  Axis axis_;
  PeerAllToAll ring_, ulysses_;
};

}  // namespace ring_attention
