#include "ring_attention/parallel/rank_grid.hpp"

#include <string>

#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

RankGrid::RankGrid(int world_rank, int ranks, int ulysses_ranks)
    : rank(world_rank), ulysses{1, ulysses_ranks} {
  require(rank >= 0 && rank < ranks, "RankGrid: no such rank");
  const int rings = ulysses_ranks >= 1 ? ranks / ulysses_ranks : 0;
  if (rings < 1 || rings * ulysses_ranks != ranks)
    throw InputError("Ulysses over " + counted(ulysses_ranks, "rank"), "the job has " + std::to_string(ranks),
                     "use a number that divides it");
  ring = {ulysses_ranks, rings};
}

TokenRanges RankGrid::slice(const Placement& shards) const {
  return part(shard(shards), ulysses.index(rank), ulysses.size);
}

TokenRanges RankGrid::shard(const Placement& shards) const {
  require(shards.ranks() == ring.size,
          "RankGrid: the placement is over another number of ranks than the ring");
  return shards.ranges(ring.index(rank));
}

std::vector<Index> RankGrid::tokens(const Placement& shards) const {
  const TokenRanges whole = shard(shards);
  std::vector<Index> tokens;
  tokens.reserve(static_cast<std::size_t>(ulysses.size));
  for (int piece = 0; piece < ulysses.size; ++piece)
    tokens.push_back(count(part(whole, piece, ulysses.size)));
  return tokens;
}

}  // namespace ring_attention
