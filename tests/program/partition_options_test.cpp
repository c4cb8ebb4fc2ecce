// What --parallel auto takes, and what it prints: bytes, counted here by hand.
#include "program/partition_options.hpp"

#include <map>

#include "cli/table.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {
namespace {

/// Bytes that a rank sends, of `ulysses` ranks that share heads: an all-to-all of q, k, v and out, and K,V round a ring.
/// Backward: of their gradients, and dK,dV one hop further.
double sent_bytes(const PartitionedWork& work, int ranks, int ulysses) {
  const int ring = ranks / ulysses;
  const auto bytes = [&](const Shape& array, Index heads) {
    const Index tokens = array.batch * array.seq / ranks;
    return static_cast<double>(tokens * array.dim * work.element * heads);
  };
  const double q = bytes(work.q, work.q.heads), k = bytes(work.kv, std::max<Index>(work.kv.heads, ulysses));
  const double forward = 2 * (q + k) * (ulysses - 1) / ulysses + 2 * k * (ring - 1);
  return work.gradients ? 2 * forward + (ring > 1 ? 2 * k * ring : 0) : forward;
}

// On one host a message costs a core its time. The arrays are so large that latencies do not count.
TEST(AutomaticPartition, SendsTheFewestBytesOfAllThatAreAllowed) {
  std::map<std::string, int> taken;
  for_each_case(300, [&](Dice& dice, Index) {
    const int ranks = dice.of<int>({1, 2, 3, 4, 6, 8, 12, 16});
    const Index kv_heads = dice.between(1, 16), heads = kv_heads * dice.between(1, 8);
    const Index batch = dice.between(1, 2), queries = dice.of<Index>({32768, 65536}) * ranks;
    const Index keys = dice.one_in(3) ? 2 * queries : queries;
    const PartitionedWork work{{batch, heads, queries, 64},
                               {batch, kv_heads, keys, 64},
                               dice.one_in(2),
                               dice.of<Index>({4, 8}),
                               dice.one_in(2)};
    PartitionOptions options;
    options.parallel = "auto";
    choose_partition(options, "cpu", work, ranks);
    const std::string& partition = options.parallel;
    const int chosen = partition == "ring"      ? 1
                       : partition == "ulysses" ? ranks
                                                : static_cast<int>(options.ulysses.value());
    const double sent = sent_bytes(work, ranks, chosen);
    const auto allowed = [&](int ulysses) {
      return ranks % ulysses == 0 && heads % ulysses == 0 &&
             (kv_heads % ulysses == 0 || ulysses % kv_heads == 0);
    };
    EXPECT_TRUE(allowed(chosen)) << chosen;
    for (int ulysses = 1; ulysses <= ranks; ++ulysses)
      EXPECT_TRUE(!allowed(ulysses) || sent <= sent_bytes(work, ranks, ulysses) * (1 + 1e-12))
          << chosen << " of " << ranks << " ranks, not " << ulysses;
    const auto words = [](double bytes) { return human_bytes(static_cast<Index>(bytes)); };
    EXPECT_EQ(options.why.substr(options.why.find(": ")),
              ": a rank sends " + words(sent) + (work.gradients ? " forward and backward" : " forward") +
                  ", in a ring " + words(sent_bytes(work, ranks, 1)));
    ++taken[options.parallel];
  });
  for (const char* name : {"ring", "ulysses", "hybrid"}) EXPECT_GT(taken[name], 20) << name;
}

}  // namespace
}  // namespace ring_attention::test
