// A transport that notices allocations.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ring_attention/core/allocation.hpp"
#include "ring_attention/core/tensor.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::test {

/// Notes the number of allocations at every hook of the loop.
class CountsAllocations : public LoopbackTransport {
 public:
  using LoopbackTransport::LoopbackTransport;
  ~CountsAllocations() override {
    EXPECT_GT(hooks_, 0);
    EXPECT_EQ(least_, most_) << "a tensor was allocated inside the loop";
  }
  void start(const Hop& hop) override {
    note();
    LoopbackTransport::start(hop);
    note();
  }
  void progress() override { note(); }
  void finish() override {
    note();
    LoopbackTransport::finish();
    note();
  }
  void drain() override {
    note();
    LoopbackTransport::drain();
    note();
  }

 private:
  void note() {
    ++hooks_;
    least_ = std::min(least_, allocation::count());
    most_ = std::max(most_, allocation::count());
  }
  int hooks_ = 0;
  Index least_ = std::numeric_limits<Index>::max();
  Index most_ = 0;
};

}  // namespace ring_attention::test
