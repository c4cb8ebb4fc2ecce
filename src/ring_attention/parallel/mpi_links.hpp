/// \file
/// `MpiLinks`: the links of a rank over MPI, between arrays of the host.
#pragma once

#include <memory>

#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"
#include "ring_attention/parallel/links.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention {

/// \tparam Along  the transport along a ring; all of them give the same bits
template <class Along>
class MpiLinksOver : public Links {
 public:
  /// Collective over `world`, which outlives this object.
  MpiLinksOver(const Communicator& world, const Axis& ulysses, const Axis& ring)
      : world_(world), ring_(world, ring), ulysses_(MpiLinksOver::group(ulysses)) {}

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t /*most_bytes*/) override {
    return std::make_unique<Along>(ring_.communicator(), static_cast<int>(channel));
  }
  [[nodiscard]] AllToAll& ring() override { return ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return *ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override {
    if (axis.size == 1) return std::make_unique<OneRank>();
    return std::make_unique<MpiAllToAll>(world_, axis);
  }

 private:
  const Communicator& world_;
  MpiAllToAll ring_;
  std::unique_ptr<AllToAll> ulysses_;
};

/// K,V move while the ranks compute.
using MpiLinks = MpiLinksOver<OverlappedTransport>;

}  // namespace ring_attention
