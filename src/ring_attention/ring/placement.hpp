/// \file
/// `Placement`: which tokens of a sequence each rank holds, as ranges.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ring_attention/core/token_range.hpp"

namespace ring_attention {

/// How tokens are distributed over ranks.
enum class PlacementKind {
  contiguous,  ///< rank r holds consecutive tokens; the first seq mod ranks ranks hold one more token
  striped,     ///< token i is on rank i mod ranks (Brandon et al., arXiv 2311.09431)
  zigzag,      ///< rank r holds chunks r and 2 * ranks - 1 - r of 2 * ranks (Megatron-LM, Llama 3)
  balanced     ///< given as ranges, which a search finds for one mask (parallel/balance/balanced.hpp)
};

/// "contiguous", "striped", "zigzag", "balanced".
[[nodiscard]] std::string name(PlacementKind kind);
/// The inverse of name(). \throws Error for another word
[[nodiscard]] PlacementKind placement_kind_named(const std::string& name);

/// The tokens of every rank, for one sequence. Any seq >= 0, any ranks >= 1; with more ranks than tokens
/// the last ranks hold none.
class Placement {
 public:
  /// \param kind  not balanced
  /// \throws Error unless ranks are from 1 to 2^30 - 1, and seq from 0 to 2^53
  Placement(PlacementKind kind, Index seq, int ranks);
  /// A placement in which ranks hold whole pieces of the sequence, such as the tiles of the same bits (Tiling::cuts()):
  /// PlacementKind then distributes pieces instead of tokens. With more ranks than pieces the last ranks hold none.
  /// \param cuts  where each piece begins, ascending from 0, and then the length of the sequence
  /// \throws Error when they do not ascend from 0
  Placement(PlacementKind kind, std::vector<Index> cuts, int ranks);
  /// A balanced placement: the ranges of each rank, in memory order.
  /// \param pieces  of the sequence, of which each rank has whole ones; 0: tokens
  /// \throws Error unless there is a rank, all ranges have stride 1 and together each token once, and those of a rank
  ///     ascend
  explicit Placement(std::vector<TokenRanges> shards, Index pieces = 0);

  [[nodiscard]] PlacementKind kind() const { return kind_; }
  [[nodiscard]] Index seq() const { return seq_; }
  [[nodiscard]] int ranks() const { return ranks_; }
  /// The number of pieces of the sequence that it distributes: tokens, or the pieces of the constructor.
  [[nodiscard]] Index pieces() const { return cuts_ ? std::ssize(*cuts_) - 1 : pieces_ > 0 ? pieces_ : seq_; }

  /// A hash of the ranges or the cuts that were given, to compare those of two processes; 0 without them.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

  /// The ranges of `rank`, in memory order.
  [[nodiscard]] TokenRanges ranges(int rank) const;
  /// The number of tokens of `rank`.
  [[nodiscard]] Index tokens(int rank) const { return count(ranges(rank)); }
  /// The number of tokens of the largest shard: what a buffer must hold.
  [[nodiscard]] Index max_tokens() const;

 private:
  /// Some consecutive pieces.
  [[nodiscard]] TokenRange tokens_of(const Interval& pieces) const;

  PlacementKind kind_;
  Index seq_;
  int ranks_;
  std::shared_ptr<const std::vector<Index>> cuts_;          // of the pieces; null: pieces are tokens
  std::shared_ptr<const std::vector<TokenRanges>> shards_;  // of a balanced placement
  std::uint64_t hash_ = 0;
  Index pieces_ = 0;  // of a balanced placement that has whole pieces
};

/// Piece `piece` of `pieces` nearly equal pieces of a shard, cut in memory order: the first ones have one more token.
/// The pieces one after the other are the shard.
[[nodiscard]] TokenRanges part(const TokenRanges& shard, int piece, int pieces);

}  // namespace ring_attention
