#include "ring_attention/parallel/balance/balanced.hpp"

#include <algorithm>
#include <string>

#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/balance/search.hpp"

namespace ring_attention {
namespace {

constexpr Index most_chunks_of_a_rank = 64, most_chunks = 4096;

Index rounded_up(Index number, Index unit) { return (number + unit - 1) / unit * unit; }

/// Tokens of a side of the tiles that are counted: a chunk has at most 32 of them, so that sums fit 32 bits.
Index counted_side(Index chunk) {
  return std::max(balance_tile, rounded_up((chunk + 31) / 32, balance_tile));
}

void require_ranks(int ranks) {
  if (ranks > most_balanced_ranks)
    throw InputError("a balanced placement over " + std::to_string(ranks) + " ranks",
                     "the search takes at most " + std::to_string(most_balanced_ranks),
                     "use another placement");
}

/// Where chunks begin, and the end: multiples of the chunk, or the tiles in which these are.
std::vector<Index> chunk_cuts(Index seq, Index chunk, Index tile, const Mask& mask) {
  std::vector<Index> cuts;
  for (Index begin = 0; begin < seq; begin += chunk)
    cuts.push_back(tile == 0 ? begin : Tiling(tile, mask.documents).of(begin).begin);
  cuts.push_back(seq);
  return cuts;
}

}  // namespace

Index balanced_chunk(Index seq, int ranks, Index tile) {
  const Index unit = tile == 0 ? balance_tile : rounded_up(balance_tile, tile);
  const Index chunks = std::min(most_chunks_of_a_rank * ranks, most_chunks);
  return std::max(unit, rounded_up((seq + chunks - 1) / chunks, unit));
}

Placement balanced(Index seq, int ranks, const Mask& mask, Index tile) {
  require_ranks(ranks);
  require(ranks >= 1 && within(seq, 0, largest_position),
          "a balanced placement is over ranks, of 0 to 2^53 tokens");
  if (tile != 0 && mask.documents && mask.offset != 0)
    throw InputError("a balanced placement of the same bits with documents and an offset",
                     "the tiles of queries and keys differ", "use another placement");
  const Index chunk = balanced_chunk(seq, ranks, tile);
  const ChunkTiles chunks(mask, chunk_cuts(seq, chunk, tile, mask), counted_side(chunk));
  std::vector<TokenRanges> shards(static_cast<std::size_t>(ranks));
  const RankOfChunk deal = best_deal(chunks, ranks);
  for (Index i = 0; i < chunks.size(); ++i)
    shards[static_cast<std::size_t>(deal[static_cast<std::size_t>(i)])].push_back(chunks.tokens(i));
  const Index tiles = tile == 0 ? 0 : std::ssize(Tiling(tile, mask.documents).cuts(seq)) - 1;
  return Placement(std::move(shards), tiles);
}

Balance balance_of(const Placement& placement, const Mask& mask) {
  const int ranks = placement.ranks();
  require_ranks(ranks);
  const Index chunk = balanced_chunk(placement.seq(), ranks), side = counted_side(chunk);
  Balance balance{.ranks = ranks};
  RingWork work(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const TokenRanges queries = placement.ranges(rank);
    balance.ranges = std::max<Index>(balance.ranges, std::ssize(queries));
    for (int owner = 0; owner < ranks; ++owner)
      work.tiles(rank, owner) =
          static_cast<std::int32_t>(visible_tiles(mask, queries, placement.ranges(owner), side));
  }
  balance.busiest = work.busiest();
  balance.finish = std::ranges::max(work.ends());
  const std::vector<int> hops = work.hops();
  for (int owner = 0; owner < ranks; ++owner)
    balance.hops += hops[static_cast<std::size_t>(owner)] * placement.tokens(owner);
  const TokenRange all{0, 1, placement.seq()};
  balance.tiles = visible_tiles(mask, all, all, side);
  balance.bound = (balance.tiles + ranks - 1) / ranks;
  for (Index begin = 0; begin < placement.seq(); begin += chunk)
    balance.bound =
        std::max(balance.bound,
                 visible_tiles(mask, all.slice(begin, std::min(chunk, placement.seq() - begin)), all, side));
  return balance;
}

}  // namespace ring_attention
