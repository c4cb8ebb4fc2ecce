/// \file
/// `LoopbackLinks`: the links of a rank among the threads of one process.
#pragma once

#include "ring_attention/parallel/collectives/loopback_all_to_all.hpp"
#include "ring_attention/parallel/links.hpp"

namespace ring_attention {

class LoopbackLinks : public Links {
 public:
  LoopbackLinks(LoopbackWorld& world, int rank, const Axis& ulysses, const Axis& ring)
      : world_(world), rank_(rank), axis_(ring), ring_(world, rank, ring), ulysses_(world, rank, ulysses) {}

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t) override {
    return std::make_unique<LoopbackTransport>(world_, rank_, static_cast<int>(channel), axis_);
  }
  [[nodiscard]] AllToAll& ring() override { return ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override {
    return std::make_unique<LoopbackAllToAll>(world_, rank_, axis);
  }

 private:
  LoopbackWorld& world_;
  int rank_;
  Axis axis_;
  LoopbackAllToAll ring_, ulysses_;
};

}  // namespace ring_attention
