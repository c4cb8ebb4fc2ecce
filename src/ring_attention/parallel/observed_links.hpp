/// \file
/// `ObservedLinks`: links that tell an observer what a rank does with them.
#pragma once

#include "ring_attention/parallel/links.hpp"

namespace ring_attention {

/// Is told what one rank does, by the thread that does it. Between hops and exchanges the rank computes.
class LinkObserver {
 public:
  virtual ~LinkObserver() = default;
  /// Between tiles.
  virtual void computes() {}
  /// A transport is made.
  virtual void opens(Channel /*channel*/) {}
  /// Before and after the wait for a hop from `peer`.
  virtual void waits(Channel /*channel*/, int /*peer*/) {}
  virtual void arrived(Channel /*channel*/) {}
  /// The last hop is over.
  virtual void drains(Channel /*channel*/) {}
  /// Before and after the exchange of pieces.
  virtual void exchanges() {}
  virtual void exchanged() {}
};

/// Passes every call on to other links.
class ObservedLinks : public Links {
 public:
  /// Both outlive this object.
  ObservedLinks(Links& links, LinkObserver& observer);

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) override;
  [[nodiscard]] AllToAll& ring() override { return *ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return *ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override;
  void progress() override;

 private:
  Links& links_;
  LinkObserver& observer_;
  std::unique_ptr<AllToAll> ring_, ulysses_;
};

/// A transport that tells an observer. \param observer  outlives it
[[nodiscard]] std::unique_ptr<Transport> observed(std::unique_ptr<Transport> transport,
                                                  LinkObserver& observer, Channel channel);

}  // namespace ring_attention
