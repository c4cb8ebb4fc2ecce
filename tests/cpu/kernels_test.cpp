// The limits that an engine keeps for its kernels, and the choice of a kernel.

#include <gtest/gtest.h>

#include "cpu/every_isa.hpp"
#include "ring_attention/attention/mask.hpp"
#include "support/masks.hpp"

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

// The lanes get the intervals of keys that a query sees; the rest of the library tests pair by pair.
TEST(Mask, TheVisibleKeysAreThoseThatAreAllowed) {
  for (const auto& [queries, keys] : {std::pair<Index, Index>{12, 12}, {7, 13}, {13, 7}})
    for (const NamedScoring& named : every_scoring(queries, keys, 2, 1)) {
      SCOPED_TRACE(named.name);
      const Mask& mask = named.scoring.mask;
      for (Index query = 0; query < queries; ++query)
        for (Index key = 0; key < keys; ++key) {
          int seen = 0;  // never by two intervals
          for (int part = 0; part < mask.parts(); ++part) {
            const Interval all = mask.visible(query, part);
            seen += all.begin <= key && key < all.end ? 1 : 0;
          }
          EXPECT_EQ(seen, mask.allowed(query, key) ? 1 : 0) << "query " << query << ", key " << key;
        }
    }
}

}  // namespace
}  // namespace ring_attention::test
