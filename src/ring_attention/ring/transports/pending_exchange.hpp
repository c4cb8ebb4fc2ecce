/// \file
/// `PendingExchange`: what every transport remembers.
#pragma once

#include "ring_attention/core/error.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// The state that every transport keeps: one hop at a time.
class PendingExchange {
 public:
  void start(const Exchange& exchange) {
    require(!pending_, "transport: start() while a hop is under way");
    exchange_ = exchange;
    pending_ = true;
  }
  [[nodiscard]] const Exchange& finish() {
    require(pending_, "transport: finish() without start()");
    pending_ = false;
    return exchange_;
  }
  void require_idle() const { require(!pending_, "transport: drain() while a hop is under way"); }
  [[nodiscard]] bool pending() const { return pending_; }

 private:
  Exchange exchange_;
  bool pending_ = false;
};

}  // namespace ring_attention
