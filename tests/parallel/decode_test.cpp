// Decoding: tokens one by one are the rows of one causal forward, on any number of ranks, after a prompt in any placement.

#include "ring_attention/parallel/decode/decode.hpp"

#include <gtest/gtest.h>

#include <numbers>

#include "ring_attention/attention/blockwise.hpp"
#include "support/decode_runs.hpp"
#include "support/masks.hpp"
#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

constexpr std::initializer_list<int> rank_numbers{1, 2, 3, 4, 5, 7};

/// The rows behind the prompt agree with the dense reference, and have the same bits on all ranks.
template <class T, class Engine = CpuEngine<T>>
void expect_right(const Problem<T>& problem, Index prompt, int ranks) {
  SCOPED_TRACE(std::to_string(ranks) + " ranks, prompt " + std::to_string(prompt));
  const auto results = run_loopback_decode<T, Engine>(problem, prompt, ranks);
  EXPECT_TRUE(agrees(results[0], problem, {{prompt, 1, problem.what.keys - prompt}}));
  for (const auto& other : results) EXPECT_TRUE(same_bits(results[0], other));
}

TEST(Decode, EveryLengthOnEveryNumberOfRanks) {
  for (Index tokens = 1; tokens <= 40; ++tokens) {
    Case what = decode_case(tokens, 1 + tokens % 3);
    what.kind = placement_kinds.begin()[tokens % 3];
    const auto problem = make_problem<float>(what);
    for (const int ranks : rank_numbers)
      expect_right(problem, tokens - 1 - (tokens > 1 ? tokens % 2 : 0), ranks);
  }
}

template <class T>
void expect_thirty_tokens() {
  for (const PlacementKind kind : placement_kinds)
    for (const Index prompt : {0, 3, 26}) {
      Case what = decode_case(prompt + 30, 3);
      what.kind = kind;
      what.spike_every = 4;
      const auto problem = make_problem<T>(what);
      for (const int ranks : rank_numbers) expect_right(problem, prompt, ranks);
    }
}
TEST(Decode, ThirtyTokensOneByOneAreACausalForwardFloat) { expect_thirty_tokens<float>(); }
TEST(Decode, ThirtyTokensOneByOneAreACausalForwardDouble) { expect_thirty_tokens<double>(); }

// On one rank the keys of a token are one piece in the order of positions: the same calls.
TEST(Decode, OnOneRankTheBitsAreThoseOfOneCausalForward) {
  const auto check = []<class T>(T) {
    for (const Index group : {1, 4, 8}) {
      const auto problem = make_problem<T>(decode_case(230, group));
      const AttentionResult<T> forward =
          attention_forward<T>(problem.q, problem.k, problem.v, problem.what.scoring);
      const TokenRanges rows{{200, 1, 30}};
      EXPECT_TRUE(same_bits(run_loopback_decode(problem, 200, 1)[0],
                            {rows_of(forward.out, rows), rows_of(forward.lse, rows)}));
    }
  };
  check(float{});
  check(double{});
}

TEST(Decode, EveryMaskAndBias) {
  for (auto& [name, scoring] : every_scoring(23, 23, 4, 0.5)) {
    SCOPED_TRACE(name);
    if (scoring.mask.right > 0) continue;  // the reference would show the token keys that are not there yet
    for (const bool with_sinks : {false, true}) {
      Scoring all = scoring;
      if (with_sinks) all.sinks = {0.5, -1, 3, negative_infinity<double>};
      Case what = decode_case(23, 2, all);
      what.kind = PlacementKind::zigzag;
      for (const int ranks : {1, 2, 4, 7}) {
        expect_right(make_problem<float>(what), 11, ranks);
        expect_right<double, BlockwiseEngine<double>>(make_problem<double>(what), 11, ranks);
      }
    }
  }
}

TEST(Decode, OnlySomeRanksSeeTheWindow) {
  for (const Index left : {0, 1, 5}) {
    const auto problem = make_problem<float>(decode_case(40, 2, {0.5, {.left = left, .right = 0}}));
    for (const int ranks : rank_numbers) expect_right(problem, 39, ranks);
  }
}

TEST(Decode, FewerTokensThanRanksAndFewerHeadsThanRanks) {
  Case what = decode_case(3, 1);
  what.kv_heads = 1;
  for (const Index prompt : {0, 1, 2}) expect_right(make_problem<float>(what), prompt, 7);
}

TEST(Decode, TheBitsAreThoseOfOneDeviceThatMergesInTheOrderOfTheRanks) {
  const auto problem = make_problem<float>(decode_case(37, 2));
  for (const int ranks : rank_numbers) {
    const auto states = states_of_last_token(problem, 20, ranks);
    auto sum = Partial<float>::empty(states[0].o.shape());
    for (const auto& state : states) merge(sum, state);
    EXPECT_TRUE(same_bits(merged(states, problem.what.scoring), finish(std::move(sum))));
  }
}

TEST(Decode, TheBitsDoNotDependOnTheThreads) {
  Case what = decode_case(3 * decode_piece + 5, 4);
  Problem<float> problem{
      what, Tensor<float>(what.q()), Tensor<float>(what.kv()), Tensor<float>(what.kv()), {}};
  fill_random(problem.q.view(), {.stream = 0});
  fill_random(problem.k.view(), {.stream = 1});
  fill_random(problem.v.view(), {.stream = 2});
  const TokenRanges rows{{what.keys - 2, 1, 2}};
  const Reference want =  // of these rows only
      reference_forward(converted<double>(rows_of(problem.q, rows)), converted<double>(problem.k),
                        converted<double>(problem.v), what.scoring, rows);
  const auto one = run_loopback_decode(problem, what.keys - 2, 2, 1);
  const Comparison comparison = compare(
      one[0].out, want.out, attention_tolerance<float>(what.keys, want.max_abs_score, want.max_abs_value));
  EXPECT_TRUE(comparison.ok) << describe(comparison);
  for (const int threads : {2, 3, 5})
    EXPECT_TRUE(same_bits(run_loopback_decode(problem, what.keys - 2, 2, threads)[0], one[0]));
}

// With exact sums a decoded token has the bits of the last row of a forward. One rank has three pieces of the keys, and more
// tiles than narrow sums take.
TEST(Decode, OfTheSameBitsIsTheRowOfAForward) {
  constexpr Index tile = 2, tokens = 2 * decode_piece + 7;
  const Tiling tiling(tile);
  const TokenRanges newest{{tokens - 1, 1, 1}};
  for (const std::vector<double>& slopes : {std::vector<double>{}, alibi_slopes(4)}) {
    const Scoring scoring{0.5, Mask::causal(), slopes, {0.5, -1, 3, 0}};
    const auto [q, k, v] = random_inputs<float>(decode_case(tokens, 2, scoring));
    const Tensor<float> row = rows_of(q, newest);
    SameBitsEngine engine(scoring, {.same_bits = tile});
    engine.begin(row, newest);
    engine.accumulate({k, v, whole(tokens)});
    const AttentionResult<float> want = engine.finish();
    for (const int ranks : {1, 3}) {
      LoopbackWorld world(ranks);
      world.run([&](int rank) {
        PeerAllToAll link(world.peers(rank), Axis{1, ranks});
        const Placement prompt(PlacementKind::striped, tiling.cuts(tokens), ranks);
        const Tensor<float> own_k = rows_of(k, prompt.ranges(rank)), own_v = rows_of(v, prompt.ranges(rank));
        const ShardedCache<float> cache(tokens, prompt, rank, own_k.view(), own_v.view(), tiling);
        EXPECT_TRUE(
            same_bits(decode<CpuEngine<float>>(link, row.view(), cache, scoring, {.same_bits = tile}), want));
      });
    }
  }
}

TEST(Decode, BytesAreThoseOfTheRowAndNotOfTheCache) {
  for (const int ranks : rank_numbers)
    for (const Index tokens : {10, 300}) {
      const auto problem = make_problem<float>(decode_case(tokens, 3));
      LoopbackWorld world(ranks, {}, std::chrono::seconds(20));
      world.run([&](int rank) {
        PeerAllToAll link(world.peers(rank), Axis{1, ranks});
        auto cache = cache_of(problem, tokens - 1, rank, ranks);
        (void)next_token(link, problem, cache);
        const Index heads = 6, own = (rank + 1) * heads / ranks - rank * heads / ranks;
        EXPECT_EQ(link.statistics().bytes_sent, Index{2} * 4 * ((heads - own) * 7 + (ranks - 1) * own * 6));
        EXPECT_LE(link.statistics().messages_sent, 2 * (ranks - 1));
      });
    }
}

TEST(Decode, RefusesWhatDoesNotBelongToTheCache) {
  const auto problem = make_problem<float>(decode_case(4, 2));
  LoopbackWorld world(1);
  world.run([&](int rank) {
    PeerAllToAll link(world.peers(rank), Axis{1, 1});
    const auto message = [&](const Shape& q, Index prompt, const Scoring& scoring) {
      const Tensor<float> query(q);
      const auto cache = cache_of(problem, prompt, 0, 1);
      return thrown_message([&] { (void)decode<CpuEngine<float>>(link, query.view(), cache, scoring); });
    };
    EXPECT_NE(message({2, 4, 2, 5}, 4, {}).find("one query"), std::string::npos);
    EXPECT_NE(message({2, 4, 1, 5}, 0, {}).find("its own key"), std::string::npos);
    EXPECT_NE(message({2, 3, 1, 5}, 4, {}).find("divide"), std::string::npos);
    EXPECT_NE(message({2, 4, 1, 6}, 4, {}).find("dim"), std::string::npos);
    Scoring drops;
    drops.dropout.probability = 0.5;
    EXPECT_NE(message({2, 4, 1, 5}, 4, drops).find("dropout"), std::string::npos);
  });
}

// Wrong variants of the merge that look right: the check that the right one passes fails for each.
template <class Change>
testing::AssertionResult merge_agrees(Index tokens, int ranks, Change change) {
  const auto problem = make_problem<double>(decode_case(tokens));
  auto states = states_of_last_token(problem, tokens - 1, ranks);
  change(states);
  return agrees(merged(states, problem.what.scoring), problem, {{tokens - 1, 1, 1}});
}

TEST(DecodeMutants, AreRejected) {
  using States = std::vector<Partial<double>>;
  const auto maxima = [](Partial<double>& state) { return state.m.view().elements(); };
  const auto right = [](States&) {};
  const auto log2_lse = [&](States& states) {  // m in units of log 2, merged as a natural logarithm
    for (auto& state : states)
      for (double& m : maxima(state)) m /= std::numbers::ln2;
  };
  const auto plain_average = [&](States& states) {
    for (auto& state : states) {
      auto result = finish(std::move(state));
      state = Partial<double>::empty(result.out.shape());
      state.o = std::move(result.out);
      state.l.fill(1);
      state.m.fill(0);
    }
  };
  const auto empty_shard_is_infinite = [&](States& states) {
    for (auto& state : states)
      for (double& m : maxima(state)) m = m == negative_infinity<double> ? -m : m;
  };
  const auto second_maximum =
      [&](States& states) {  // the maximum of all ranks, and sums that stay as they were
        for (Index i = 0; i < states[0].m.size(); ++i) {
          double top = negative_infinity<double>;
          for (auto& state : states) top = std::max(top, state.m.data()[i]);
          for (auto& state : states) state.m.data()[i] = top;
        }
      };
  for (const auto& [tokens, ranks] : {std::pair<Index, int>{20, 3}, {2, 5}}) {
    EXPECT_TRUE(merge_agrees(tokens, ranks, right));
    EXPECT_FALSE(merge_agrees(tokens, ranks, log2_lse));
    EXPECT_FALSE(merge_agrees(tokens, ranks, plain_average));
    EXPECT_FALSE(merge_agrees(tokens, ranks, second_maximum));
  }
  EXPECT_TRUE(merge_agrees(20, 3, empty_shard_is_infinite));  // no shard is empty
  EXPECT_FALSE(merge_agrees(2, 5, empty_shard_is_infinite));
}

TEST(DecodeMutants, ATokenThatIsAppendedTooLateIsMissing) {
  const auto problem = make_problem<double>(decode_case(20));
  const auto cache = cache_of(problem, 19, 0, 1);
  LoopbackWorld world(1);
  world.run([&](int rank) {
    PeerAllToAll link(world.peers(rank), Axis{1, 1});
    const Tensor<double> q = rows_of(problem.q, {{19, 1, 1}});
    const auto got = decode<CpuEngine<double>>(link, q.view(), cache, problem.what.scoring);
    EXPECT_FALSE(agrees(got, problem, {{19, 1, 1}}));
  });
}

}  // namespace
}  // namespace ring_attention::test
