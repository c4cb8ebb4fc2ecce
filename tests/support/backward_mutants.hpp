// Wrong transports of a backward that look right.
#pragma once

#include <algorithm>
#include <vector>

#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::test {

/// Gradients stop where K,V stop: one hop short of their owner.
class NotReturned : public LoopbackTransport {
 public:
  NotReturned(LoopbackWorld& world, int rank, int channel)
      : LoopbackTransport(world, rank, channel), hops_(channel == 1 ? ring().gradient_hops() : 0) {}

  void start(const Hop& hop) override {
    hop_ = hop;
    if (++started_ != hops_) LoopbackTransport::start(hop);
  }
  void finish() override {
    if (started_ == hops_)
      std::ranges::copy(hop_.send, hop_.receive.begin());
    else
      LoopbackTransport::finish();
  }

 private:
  int hops_, started_ = 0;
  Hop hop_;
};

/// dK,dV stay: a rank adds what it computes for the keys of any rank to its own gradients.
class LocalGradients : public LoopbackTransport {
 public:
  LocalGradients(LoopbackWorld& world, int rank, int channel)
      : LoopbackTransport(world, rank, channel), local_(channel == 1) {}

  void start(const Hop& hop) override {
    hop_ = hop;
    if (!local_) LoopbackTransport::start(hop);
  }
  void finish() override {
    if (local_)
      std::ranges::copy(hop_.send, hop_.receive.begin());
    else
      LoopbackTransport::finish();
  }

 private:
  bool local_;
  Hop hop_;
};

/// The right K,V travel, but a step computes with those of the step before: a buffer reused one step too long.
class StaleKeysAndValues : public LoopbackTransport {
 public:
  StaleKeysAndValues(LoopbackWorld& world, int rank, int channel)
      : LoopbackTransport(world, rank, channel), stale_(channel == 0) {}

  void start(const Hop& hop) override {
    if (stale_ && current_.empty()) current_.assign(hop.send.begin(), hop.send.end());
    hop_ = hop;
    LoopbackTransport::start({stale_ ? std::span<const std::byte>(current_) : hop.send, hop.receive});
  }
  void finish() override {
    LoopbackTransport::finish();
    if (stale_) std::swap_ranges(current_.begin(), current_.end(), hop_.receive.begin());
  }

 private:
  bool stale_;
  Hop hop_;
  std::vector<std::byte> current_;  // what belongs to this step; from the second step on not computed with
};

}  // namespace ring_attention::test
