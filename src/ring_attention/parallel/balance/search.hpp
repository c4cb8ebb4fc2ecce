/// \file
/// The search behind balanced(): from known deals of chunks to better ones, by swaps.
#pragma once

#include <cstdint>
#include <vector>

#include "ring_attention/parallel/balance/deal.hpp"

namespace ring_attention {

/// Deals that need no search: contiguous, zigzag, and in turns, striped and as a snake. Each rank has as many chunks
/// as another or one more, and the last chunk, which may be short, is on a rank with one more, if there is one.
[[nodiscard]] std::vector<RankOfChunk> known_deals(Index chunks, int ranks);

/// The best deal found: of those whose finish is within 3 % of the earliest, one with the fewest bytes over the ring, of
/// these one with the fewest ranges, and of these the one with the earliest finish. The tokens of two ranks differ by no
/// more than in the contiguous deal. The search has only integers, so every process finds the same.
/// \param seed   of the swaps that it tries
[[nodiscard]] RankOfChunk best_deal(const ChunkTiles& chunks, int ranks, std::uint64_t seed = 0);

}  // namespace ring_attention
