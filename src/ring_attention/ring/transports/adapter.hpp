/// \file
/// `TransportAdapter`: a transport that changes some calls of another one.
#pragma once

#include <memory>
#include <utility>

#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// Passes every call to another transport. Derived classes change some of them.
class TransportAdapter : public Transport {
 public:
  explicit TransportAdapter(std::unique_ptr<Transport> transport) : transport_(std::move(transport)) {}

  [[nodiscard]] Ring ring() const override { return transport_->ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const override { return transport_->statistics(); }
  void start(const Hop& hop) override { transport_->start(hop); }
  void progress() override { transport_->progress(); }
  void finish() override { transport_->finish(); }
  void drain() override { transport_->drain(); }

 private:
  std::unique_ptr<Transport> transport_;
};

}  // namespace ring_attention
