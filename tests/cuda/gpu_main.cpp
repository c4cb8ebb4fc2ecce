// main() of the tests that need a GPU. Without one they are skipped with the reason. A GPU that does not work is a
// failure.

#include <gtest/gtest.h>

#include <cstdio>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cuda/device.hpp"
#include "support/select_source.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!ring_attention::test::select_source(argc, argv)) return 2;
  try {
    if (const std::string why = ring_attention::cuda::why_no_device(); !why.empty()) {
      std::printf("skipped: %s\n", why.c_str());
      return 77;
    }
  } catch (const ring_attention::Error& error) {
    std::printf("error: %s\n", error.what());
    return 1;
  }
  return RUN_ALL_TESTS();
}
