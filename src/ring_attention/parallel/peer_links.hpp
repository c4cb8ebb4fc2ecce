/// \file
/// `PeerLinks`: the links of a rank over Peers, between arrays of the host.
#pragma once

#include <algorithm>
#include <chrono>

#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/parallel/links.hpp"
#include "ring_attention/ring/transports/peers.hpp"

namespace ring_attention {

/// The ranks along an axis.
class PeerAllToAll : public AllToAll {
 public:
  /// \param peers  outlive this object
  PeerAllToAll(Peers& peers, const Axis& axis) : peers_(peers), axis_(axis) {}

  [[nodiscard]] int rank() const override { return axis_.index(peers_.rank()); }
  [[nodiscard]] int size() const override { return axis_.size; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }
  void all_to_all(const Pieces& pieces) override {
    require_pieces(pieces, rank(), size());
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::unique_ptr<Peers::Message>> receives, sends;
    for (int index = 0; index < size(); ++index) {
      const int other = axis_.at(peers_.rank(), index);
      const std::span to_other = pieces.send[static_cast<std::size_t>(index)];
      const std::span from_other = pieces.receive[static_cast<std::size_t>(index)];
      if (index == rank())
        std::ranges::copy(to_other, from_other.begin());
      else if (!from_other.empty())
        receives.push_back(peers_.receive(from_other, other, Peers::collective_tag));
      if (index != rank() && !to_other.empty())
        sends.push_back(peers_.send(to_other, other, Peers::collective_tag));
    }
    for (const auto& message : receives) message->wait();
    for (const auto& message : sends) message->wait();
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
    count_exchange(statistics_, pieces, rank(), waited.count());
  }

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
    return std::make_unique<PeerTransport>(peers_, axis_, static_cast<int>(channel));
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
