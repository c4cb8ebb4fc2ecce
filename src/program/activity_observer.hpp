/// \file
/// `ActivityObserver`: tells the watchdog what a rank does.
#pragma once

#include "program/watchdog.hpp"
#include "ring_attention/parallel/observer.hpp"

namespace ring_attention {

/// Between hops a ring computes: the transport of K,V enters that phase, from its construction on. A hop of dK,dV does
/// not end a step: the transport of the gradients enters a phase only when the ring waits for it.
class ActivityObserver : public Observer {
 public:
  explicit ActivityObserver(Activity& activity) : activity_(activity) {}

  void beats() override { activity_.beat(); }
  void opens(Channel channel) override {
    if (channel == Channel::kv) activity_.enter(Phase::compute, 0);
  }
  void waits(const ObservedHop& hop) override {
    activity_.enter(Phase::exchange, activity_.step(), hop.ring.prev());
  }
  void arrived(const ObservedHop& hop, double) override {
    if (hop.channel == Channel::kv) activity_.enter(Phase::compute, activity_.step() + 1);
  }
  void drains(Channel) override { activity_.enter(Phase::drain); }
  void exchanges(const PieceExchange&) override { activity_.enter(Phase::exchange); }
  void exchanged(const PieceExchange&, double) override { activity_.enter(Phase::compute); }

 private:
  Activity& activity_;
};

}  // namespace ring_attention
