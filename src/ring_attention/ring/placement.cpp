#include "ring_attention/ring/placement.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

/// Slice `part` of `parts` nearly equal slices of [0, seq): the first seq mod parts have one token more.
Run slice(Index seq, int part, int parts) {
  const Index small = seq / parts;
  const Index larger = seq % parts;
  return {part * small + std::min<Index>(part, larger), 1, small + (part < larger ? 1 : 0)};
}

}  // namespace

Placement::Placement(Layout layout, Index seq, int ranks) : layout_(layout), seq_(seq), ranks_(ranks) {
  require(ranks >= 1, "a placement needs at least one rank");
  require(seq >= 0, "a sequence has at least zero tokens");
}

Runs Placement::runs(int rank) const {
  require(rank >= 0 && rank < ranks_, "Placement: no such rank");
  Runs runs;
  switch (layout_) {
    case Layout::contiguous: runs.push_back(slice(seq_, rank, ranks_)); break;
  }
  std::erase_if(runs, [](const Run& run) { return run.count == 0; });
  return runs;
}

Index Placement::max_tokens() const {
  Index most = 0;
  for (int rank = 0; rank < ranks_; ++rank) most = std::max(most, tokens(rank));
  return most;
}

}  // namespace ring_attention
