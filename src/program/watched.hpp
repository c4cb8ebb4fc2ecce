/// \file
/// `Watched`: a transport that is chosen when the program runs, and that tells the watchdog what it does.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "program/watchdog.hpp"
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
  template <class Make>
  Watched(Activity& activity, Make make, Channel channel = kv, std::function<void()> wait = {})
      : activity_(activity),
        channel_(channel),
        wait_(std::move(wait)),
        base_(std::make_unique<Model<decltype(make())>>(make)) {
    if (channel_ == kv) activity_.enter(Phase::compute, 0);
  }

  [[nodiscard]] Ring ring() const { return base_->ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return base_->statistics(); }

  void start(const Exchange& exchange) { base_->start(exchange); }
  void progress() {
    activity_.beat();
    base_->progress();
  }
  void finish() {
    activity_.enter(Phase::exchange, activity_.step(), base_->ring().prev());
    base_->finish();
    if (channel_ == kv) activity_.enter(Phase::compute, activity_.step() + 1);
  }
  void drain() {
    activity_.enter(Phase::drain);
    base_->drain();
    if (wait_) wait_();
  }

 private:
  struct Base {
    virtual ~Base() = default;
    [[nodiscard]] virtual Ring ring() const = 0;
    [[nodiscard]] virtual const TransportStatistics& statistics() const = 0;
    virtual void start(const Exchange& exchange) = 0;
    virtual void progress() = 0;
    virtual void finish() = 0;
    virtual void drain() = 0;
  };
  template <Transport Kind>
  struct Model final : Base {
    template <class Make>
    explicit Model(Make make) : transport(make()) {}
    [[nodiscard]] Ring ring() const override { return transport.ring(); }
    [[nodiscard]] const TransportStatistics& statistics() const override { return transport.statistics(); }
    void start(const Exchange& exchange) override { transport.start(exchange); }
    void progress() override { transport.progress(); }
    void finish() override { transport.finish(); }
    void drain() override { transport.drain(); }

    Kind transport;
  };

  Activity& activity_;
  Channel channel_;
  std::function<void()> wait_;
  std::unique_ptr<Base> base_;
};

static_assert(Transport<Watched>);

}  // namespace ring_attention
