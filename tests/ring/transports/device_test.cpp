// Rings of virtual ranks on one GPU: each rank a thread with a stream, parcels in device memory.

#include <gtest/gtest.h>

#include "cuda/parallel_runs.hpp"

namespace ring_attention::test {
namespace {

template <class T>
void expect_rings_agree(const Case& what, int ranks) {
  const auto problem = problem_in<T>(what, nullptr);
  const Team team{.rings = ranks};
  const auto direct = run_on_gpu<T>(problem, team), staged = run_on_gpu<T>(problem, team, true);
  EXPECT_TRUE(agrees_in(unit_of<T>, direct.attended, problem.forward, whole(what.queries)));
  // The forward's out and lse are those of T's arithmetic, too.
  EXPECT_TRUE(gradients_agree_in(2 * unit_of<T>, direct.gradients, problem));
  EXPECT_TRUE(same_bits<float>(staged, direct)) << "of all transports";
  EXPECT_TRUE(sent_what_it_should(direct, what, team, bytes_of<T>));
  if (ranks > 1) return;
  const auto alone = forward_in_pieces<T>(problem.forward, {whole(what.keys)}, {}, whole(what.queries));
  EXPECT_TRUE(same_bits(alone, direct.attended)) << "one rank's ring is the single device";
}

TEST(DeviceRings, AgreeWithTheReferenceForwardAndBackward) {
  for_each_case(15, [](Dice& dice, Index index) {
    const int ranks = static_cast<int>(index % 5) + 1;
    Case what = random_case(dice, index, ranks);
    if (what.group == 8) what.group = 4;
    switch (index % 3) {
      case 0: return expect_rings_agree<float>(what, ranks);
      case 1: return expect_rings_agree<Bf16>(what, ranks);
      default: return expect_rings_agree<Fp16>(what, ranks);
    }
  });
}

TEST(DeviceRings, AgreeWithBiasDropoutAndSinks) {
  constexpr std::pair<Index, Index> every_broadcast[] = {{1, 1}, {1, 4}, {2, 1}, {2, 4}};
  std::size_t i = 0;
  for (const int ranks : {1, 2, 3, 5})
    for (const PlacementKind kind : placement_kinds) {
      Case what{.batch = 2,
                .group = 2,
                .queries = 23,
                .keys = 31,
                .dim = 5,
                .scoring = {0.4, Mask::causal(8)},
                .bias_batch = every_broadcast[i % 4].first,
                .bias_heads = every_broadcast[i % 4].second,
                .kind = kind,
                .every_hop = false};
      what.scoring.dropout = {.probability = 0.3, .seed = 4};
      what.scoring.sinks = {0.5, -1, 0, 2};
      if (i++ % 3 == 0)
        expect_rings_agree<Bf16>(what, ranks);
      else
        expect_rings_agree<float>(what, ranks);
    }
}

TEST(DeviceRings, TravelAsKFollowedByVOfTheirOwner) {
  const Placement placement(PlacementKind::zigzag, 8, 3);
  const cuda::DeviceMemory memory(nullptr);
  KvParcel<float> kv({1, 2, 8, 4}, placement, 1, memory);
  EXPECT_EQ(kv.elements().size(), static_cast<std::size_t>(Index{2} * 2 * 4 * placement.tokens(1)));
  EXPECT_EQ(kv.v().data(), kv.k().data() + kv.k().size());
}

}  // namespace
}  // namespace ring_attention::test
