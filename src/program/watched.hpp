/// \file
/// `Watched`: a transport that is chosen when the program runs, and that tells the watchdog what it does.
/// `WatchedAllToAll`: the same for an all-to-all.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "program/watchdog.hpp"
#include "ring_attention/parallel/line.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// Forwards every call to a transport of any kind, and tells an Activity the phase of the ring.
///
/// Between hops a ring computes: the transport of K,V enters that phase, from its construction on. A hop of dK,dV does
/// not end a step: the transport of the gradients enters a phase only when the ring waits for it.
class Watched {
 public:
  enum Channel : int { kv, gradients };

  /// \param make  returns the transport (which need not be movable)
  /// \param wait  ends drain(): waits for the last step of a device that computes while the host runs ahead
  Watched(Activity& activity, auto make, Channel channel = kv, std::function<void()> wait = {})
      : activity_(activity), channel_(channel), wait_(std::move(wait)) {
    watch(std::shared_ptr<decltype(make())>(new auto(make())));
    if (channel_ == kv) activity_.enter(Phase::compute, 0);
  }

  [[nodiscard]] Ring ring() const { return ring_; }
  [[nodiscard]] const TransportStatistics& statistics() const { return *statistics_; }

  void start(const Exchange& exchange) { start_(exchange); }
  void progress() {
    activity_.beat();
    progress_();
  }
  void finish() {
    activity_.enter(Phase::exchange, activity_.step(), ring_.prev());
    finish_();
    if (channel_ == kv) activity_.enter(Phase::compute, activity_.step() + 1);
  }
  void drain() {
    activity_.enter(Phase::drain);
    drain_();
    if (wait_) wait_();
  }

 private:
  template <Transport Kind>
  void watch(const std::shared_ptr<Kind>& transport) {
    ring_ = transport->ring();
    statistics_ = {transport, &transport->statistics()};
    start_ = [&kind = *transport](const Exchange& exchange) { kind.start(exchange); };
    progress_ = [&kind = *transport] { kind.progress(); };
    finish_ = [&kind = *transport] { kind.finish(); };
    drain_ = [&kind = *transport] { kind.drain(); };
  }

  Activity& activity_;
  Channel channel_;
  std::function<void()> wait_;
  Ring ring_;
  std::shared_ptr<const TransportStatistics> statistics_;  // and the transport that they are a part of
  std::function<void(const Exchange&)> start_;
  std::function<void()> progress_, finish_, drain_;
};

static_assert(Transport<Watched>);

/// Ranks compute between two exchanges.
class WatchedAllToAll {
 public:
  /// \param wait  begins exchange(): waits for a device that computes while the host runs ahead
  WatchedAllToAll(Activity& activity, Line link, std::function<void()> wait = {})
      : activity_(activity), link_(std::move(link)), wait_(std::move(wait)) {}

  [[nodiscard]] int rank() const { return link_.rank(); }
  [[nodiscard]] int size() const { return link_.size(); }
  [[nodiscard]] TransportStatistics statistics() const { return link_.statistics(); }

  void exchange(const Pieces& pieces) {
    if (wait_) wait_();
    activity_.enter(Phase::exchange);
    link_.exchange(pieces);
    activity_.enter(Phase::compute);
  }

 private:
  Activity& activity_;
  Line link_;
  std::function<void()> wait_;
};

static_assert(AllToAll<WatchedAllToAll>);

}  // namespace ring_attention
