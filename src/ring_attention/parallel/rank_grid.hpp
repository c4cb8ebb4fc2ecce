/// \file
/// `RankGrid`: the place of a rank where Ulysses and a ring work together; `Placements`: where tokens are.
///
/// Source: Fang, Zhao, USP: a unified sequence parallelism approach, arXiv 2405.07719.
#pragma once

#include <string>
#include <vector>

#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention {

/// Which rank holds which tokens: of the queries, and of the keys and values.
struct Placements {
  /// Self attention: queries and keys are the same tokens.
  Placements(const Placement& tokens) : queries(tokens), keys(tokens) {}  // NOLINT: implicit on purpose
  /// Cross attention: two sequences, of any two lengths.
  Placements(const Placement& of_queries, const Placement& of_keys) : queries(of_queries), keys(of_keys) {}

  Placement queries, keys;
};

/// N = U R ranks, rank = u + U r: U ranks that share heads are neighbours, R ranks with the same heads form a ring.
///
/// Rank (u, r) holds slice u, in memory order, of shard r of a Placement over R ranks. The slices of the U ranks, one after
/// the other, are the shard in memory order. So an all-to-all among them gives each rank the whole shard, for some heads, in
/// the right order: no array is reordered, for any placement and length.
/// U = 1 is a ring over all ranks, R = 1 is Ulysses alone.
struct RankGrid {
  /// \param world_rank  one of `ranks`
  /// \param ulysses_ranks  U
  /// \throws InputError unless U >= 1 and U divides `ranks`
  RankGrid(int world_rank, int ranks, int ulysses_ranks) : rank(world_rank), ulysses{1, ulysses_ranks} {
    require(rank >= 0 && rank < ranks, "RankGrid: no such rank");
    const int rings = ulysses_ranks >= 1 ? ranks / ulysses_ranks : 0;
    if (rings < 1 || rings * ulysses_ranks != ranks)
      throw InputError("Ulysses over " + counted(ulysses_ranks, "rank"),
                       "the job has " + std::to_string(ranks), "use a number that divides it");
    ring = {ulysses_ranks, rings};
  }

  int rank;
  Axis ulysses, ring;

  /// The tokens that this rank holds. \param shards  over R ranks
  [[nodiscard]] TokenRanges slice(const Placement& shards) const {
    return part(shard(shards), ulysses.index(rank), ulysses.size);
  }
  /// The tokens that this rank computes with.
  [[nodiscard]] TokenRanges shard(const Placement& shards) const {
    require(shards.ranks() == ring.size,
            "RankGrid: the placement is over another number of ranks than the ring");
    return shards.ranges(ring.index(rank));
  }
  /// How many tokens each rank of its Ulysses group holds.
  [[nodiscard]] std::vector<Index> tokens(const Placement& shards) const {
    const TokenRanges whole = shard(shards);
    std::vector<Index> tokens;
    for (int piece = 0; piece < ulysses.size; ++piece)
      tokens.push_back(count(part(whole, piece, ulysses.size)));
    return tokens;
  }
};

}  // namespace ring_attention
