/// \file
/// `LoopbackAllToAll`: an all-to-all among the threads of a LoopbackWorld, over its simulated link.
#pragma once

#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention {

/// One rank's end, in its group along `axis`. The pieces of a rank leave over one link, so all of them arrive
/// latency + (bytes to other ranks) / bandwidth after it called all_to_all().
class LoopbackAllToAll : public AllToAll {
 public:
  LoopbackAllToAll(LoopbackWorld& world, int rank, const Axis& axis)
      : world_(world), rank_(rank), axis_(axis) {}

  [[nodiscard]] int rank() const override { return axis_.index(rank_); }
  [[nodiscard]] int size() const override { return axis_.size; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }

  void all_to_all(const Pieces& pieces) override;

 private:
  void move(const Pieces& pieces);

  LoopbackWorld& world_;
  int rank_;
  Axis axis_;
  TransportStatistics statistics_;
};

}  // namespace ring_attention
