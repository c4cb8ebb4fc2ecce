// GoogleTest's main for programs of one process.

#include <gtest/gtest.h>

#include "support/select_source.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (!ring_attention::test::select_source(argc, argv)) return 2;
  return RUN_ALL_TESTS();
}
