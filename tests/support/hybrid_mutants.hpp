// Wrong variants of a hybrid that look right. Each replaces one decision.
#pragma once

#include "support/run.hpp"

namespace ring_attention::test {

/// Query heads dealt round-robin, K,V heads in blocks: the groups break.
struct HeadsInterleaved : HybridRules {
  [[nodiscard]] Index query_head(Index head, Index heads, int ranks) const override {
    const Index own = heads / ranks;
    return head / own + head % own * ranks;
  }
};

/// dK and dV of a K,V head that several ranks have are those of the first of these ranks.
struct FirstReplicaOnly : HybridRules {
  [[nodiscard]] bool returns_nothing(const std::vector<Interval>& heads, std::size_t own) const override {
    return own > 0 && heads[own].begin < heads[own - 1].end;
  }
};

/// Tokens are placed over all ranks, not over the ranks of a ring.
struct PlacedOverTheWorld : HybridRules {
  [[nodiscard]] TokenRanges slice(const RankGrid& held, const Placement& shards) const override {
    const int ranks = held.ulysses.size * held.ring.size;
    return Placement(shards.kind(), shards.seq(), ranks).ranges(held.rank);
  }
};

/// The sizes of the two axes are swapped between the placement and the messages.
struct AxesSwapped : HybridRules {
  [[nodiscard]] RankGrid computes(const RankGrid& held) const override {
    return {held.rank, held.ulysses.size * held.ring.size, held.ring.size};
  }
};

}  // namespace ring_attention::test
