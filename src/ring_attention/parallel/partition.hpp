/// \file
/// `Partition`: how the ranks of a job divide one attention among them.
#pragma once

#include <string>

#include "ring_attention/parallel/rank_grid.hpp"

namespace ring_attention {

/// What each rank computes, and what travels. With the same ranks in a ring, all give the same bits for results that
/// belong to one head alone: docs/parallelism.md says which match.
enum class Partition {
  ring,       ///< its tokens, all heads; K,V travel around a ring of all ranks
  ulysses,    ///< all tokens of some heads; q, k, v and out travel in all-to-alls
  hybrid,     ///< both: U ranks share the heads, the rings have ranks / U ranks each
  all_gather  ///< like ring, but the K,V of all ranks are gathered first
};

/// "ring", "ulysses", "hybrid", "all-gather".
[[nodiscard]] std::string name(Partition partition);
/// The inverse of name(). \throws Error for another word
[[nodiscard]] Partition partition_named(const std::string& name);

/// How ranks divide the work of a call.
struct Division {
  Partition partition = Partition::ring;
  int ulysses = 1;  ///< U of a hybrid: the number of ranks that share heads

  /// The place of a rank. \throws InputError when U does not divide the ranks
  [[nodiscard]] RankGrid grid(int rank, int ranks) const;
};

}  // namespace ring_attention
