/// \file
/// `Watched`: a transport that reports to the watchdog what it does.
#pragma once

#include <utility>

#include "program/activity.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// Forwards every call to a transport of type Base and tells an Activity the phase of the ring.
///
/// Between hops a ring computes: the transport of K,V says so, from its construction on. That of dK,dV travels inside
/// a step that it does not end, and says only when the ring waits for it.
template <Transport Base>
class Watched {
 public:
  enum class Channel { kv, gradients };

  /// \param make  makes the transport (which cannot be moved)
  template <class Make>
  Watched(Activity& activity, Make make, Channel channel = Channel::kv)
      : activity_(activity), base_(make()), channel_(channel) {
    if (channel_ == Channel::kv) activity_.enter(Phase::compute, 0);
  }

  [[nodiscard]] auto ring() const { return base_.ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return base_.statistics(); }

  void start(const Exchange& exchange) { base_.start(exchange); }
  void progress() {
    activity_.beat();
    base_.progress();
  }
  void finish() {
    activity_.enter(Phase::exchange, activity_.step(), base_.ring().prev());
    base_.finish();
    if (channel_ == Channel::kv) activity_.enter(Phase::compute, activity_.step() + 1);
  }
  void drain() {
    activity_.enter(Phase::drain);
    base_.drain();
  }

 private:
  Activity& activity_;
  Base base_;
  Channel channel_;
};

}  // namespace ring_attention
