// Tests that need a GPU: without one they are skipped, with the reason.

#include <gtest/gtest.h>

#include <cstdio>

#include "ring_attention/cuda/device.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const std::string why = ring_attention::cuda::why_no_device(); !why.empty()) {
    std::printf("skipped: %s\n", why.c_str());
    return 77;
  }
  return RUN_ALL_TESTS();
}
