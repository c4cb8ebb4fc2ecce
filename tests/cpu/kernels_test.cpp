// The limits that an engine keeps for its kernels, and the choice of a kernel.

#include <gtest/gtest.h>

#include "cpu/every_isa.hpp"

namespace ring_attention::test {
namespace {

TEST(Kernels, TilesAreNoWiderThanTheArraysOfLanes) {
  for_each_isa([](Isa isa) {
    EXPECT_GE(kernels<float>(isa).forward.many.lanes, 1);
    EXPECT_LE(kernels<float>(isa).forward.many.lanes, cpu::max_lanes);
    EXPECT_LE(kernels<double>(isa).forward.many.lanes, cpu::max_lanes);
    for (const int dim : {1, 64, 128, 256, 4096}) {
      EXPECT_GE(kernels<float>(isa).backward.tile(dim).queries, 1);
      EXPECT_LE(kernels<float>(isa).backward.tile(dim).queries, cpu::max_lanes);
      EXPECT_GE(kernels<double>(isa).backward.tile(dim).queries, 1);
      EXPECT_LE(kernels<double>(isa).backward.tile(dim).queries, cpu::max_lanes);
    }
  });
}

TEST(Kernels, ThoseForFewQueriesHaveFewerLanes) {
  const auto ascend = [](const auto& kernels) {
    EXPECT_GE(kernels.forward.few[0].lanes, 1);
    EXPECT_EQ(kernels.forward.few[1].lanes, 2 * kernels.forward.few[0].lanes);
    EXPECT_LE(kernels.forward.few[1].lanes, kernels.forward.many.lanes);
  };
  for_each_isa([&](Isa isa) {
    ascend(kernels<float>(isa));
    ascend(kernels<double>(isa));
  });
}

TEST(Kernels, EveryInstructionSetHasANameOfItsOwn) {
  for_each_isa([](Isa isa) { EXPECT_EQ(isa_named(name_of(isa)), isa); });
}

}  // namespace
}  // namespace ring_attention::test
