/// \file
/// ulysses(), hybrid() and all_gather() for the calls of ring_attention.hpp, in place of ring(); and all of them by name.
#pragma once

#include <string>

#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/all_gather/all_gather.hpp"
#include "ring_attention/parallel/ulysses/ulysses.hpp"

namespace ring_attention {

/// What each rank computes, and what travels. With the same ranks in a ring, all give the same bits for results that
/// belong to one head alone: docs/parallelism.md says which match.
///
///     "ring"        its tokens, all heads; K,V travel around a ring of all ranks
///     "ulysses"     all tokens of some heads; q, k, v and out travel in all-to-alls
///     "hybrid"      both: U ranks share the heads, the rings have ranks / U ranks each
///     "all-gather"  like ring, but the K,V of all ranks are gathered first
///
/// \param share_heads  U of a hybrid  \throws Error for another word
[[nodiscard]] inline Division division_named(const std::string& name, int share_heads = 1) {
  if (name == "ring") return ring();
  if (name == "ulysses") return ulysses();
  if (name == "hybrid") return hybrid(share_heads);
  require(name == "all-gather", "no partition is called " + name);
  return all_gather();
}

}  // namespace ring_attention
