/// \file
/// `balanced`: a placement that balances any mask; `balance_of`: how well a placement does.
///
///     const ra::Placement placement = ra::balanced(tokens, ranks, scoring.mask);
///
/// The sequence is cut into chunks, and a search deals them to the ranks. The deal depends on the mask, the length and
/// the number of ranks alone, so all ranks find the same one without a message. The search begins with the placements
/// of ring/placement.hpp in whole chunks, and swaps chunks. Among the deals found whose finish is at most 3 % later
/// than the earliest, it takes one with the fewest bytes over the ring, of these one with the fewest ranges,
/// and of these one with the earliest finish.
///
/// A shard has up to 64 ranges. A GPU takes two of them in a launch (cuda::max_ranges), so a step of a ring makes up
/// to 32 launches of a kernel, where a zigzag shard makes one.
#pragma once

#include "ring_attention/attention/mask.hpp"
#include "ring_attention/ring/placement.hpp"

namespace ring_attention {

/// Tokens of a chunk: 64, or a multiple of 64 where a rank would have more than 64 chunks, or all ranks together more
/// than 4096. The last chunk may be shorter.
/// \param tile  of the same bits (same_bits_processor.hpp), of which the tokens of a chunk are then a multiple; 0: none
[[nodiscard]] Index balanced_chunk(Index seq, int ranks, Index tile = 0);

/// The most ranks that a balanced placement may have.
inline constexpr int most_balanced_ranks = 2048;

/// A placement of one sequence (self attention). The tokens of two ranks differ by one chunk at most.
///
/// Takes about a second of one core at 1,048,576 tokens on 64 ranks, and at most 0.3 GiB.
/// \param tile  of the same bits: a rank has whole tiles of Tiling(tile, mask.documents). With documents, at each of
///     which the tiles begin anew, the tokens of two ranks may differ by three chunks. 0: none
/// \throws InputError for more than most_balanced_ranks ranks, and with a tile, documents and an offset of the mask:
///     the tiles of queries and keys then differ
[[nodiscard]] Placement balanced(Index seq, int ranks, const Mask& mask, Index tile = 0);

/// What the ranks of a ring compute with a placement, in tiles of 64 x 64 that Mask::coverage does not call none;
/// the side is longer, a 32nd of a chunk, where a chunk has more than 2048 tokens.
struct Balance {
  int ranks = 1;
  Index tiles = 0;  ///< of all ranks
  Index bound =
      0;  ///< no balanced deal goes below it: an equal share, or the tiles of the heaviest chunk if that is more
  Index busiest = 0;  ///< of the rank that computes most
  Index finish = 0;   ///< when the last rank ends, if a rank waits for its two neighbours only (lesson 14)
  Index hops = 0;     ///< tokens of K,V times the hops that they make over the ring
  Index ranges = 0;   ///< of the shard that has the most

  /// Some of these tiles of a rank relative to an equal share of all; 1 where no tile is visible.
  [[nodiscard]] double relative(Index of_a_rank) const {
    return tiles > 0 ? static_cast<double>(of_a_rank) * ranks / static_cast<double>(tiles) : 1;
  }
};

/// \param placement  of queries and keys, over 1 to most_balanced_ranks ranks
/// \throws InputError for more ranks
[[nodiscard]] Balance balance_of(const Placement& placement, const Mask& mask);

}  // namespace ring_attention
