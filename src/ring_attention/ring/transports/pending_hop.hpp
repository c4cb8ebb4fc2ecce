/// \file
/// `PendingHop`: what every transport remembers.
#pragma once

#include "ring_attention/core/error.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// The state that every transport keeps: one hop at a time.
class PendingHop {
 public:
  void start(const Hop& hop) {
    require(!pending_, "transport: start() while a hop is under way");
    hop_ = hop;
    pending_ = true;
  }
  [[nodiscard]] const Hop& finish() {
    require(pending_, "transport: finish() without start()");
    pending_ = false;
    return hop_;
  }
  void require_idle() const { require(!pending_, "transport: drain() while a hop is under way"); }
  [[nodiscard]] bool pending() const { return pending_; }

 private:
  Hop hop_;
  bool pending_ = false;
};

}  // namespace ring_attention
