#include "ring_attention/ring/placement.hpp"

#include <algorithm>
#include <array>

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

/// Slice `part` of `parts` nearly equal slices of [0, seq): the first seq mod parts have one token more.
Run slice(Index seq, int part, int parts) {
  const Index small = seq / parts;
  const Index larger = seq % parts;
  return {part * small + std::min<Index>(part, larger), 1, small + (part < larger ? 1 : 0)};
}

/// Joins a run to the one before it where it goes on just there: the two slices of the last zigzag rank.
Runs joined(const Runs& runs) {
  Runs result;
  for (const Run& run : runs) {
    if (!result.empty() && result.back().stride == 1 && run.stride == 1 &&
        run.begin == result.back().last() + 1)
      result.back().count += run.count;
    else
      result.push_back(run);
  }
  return result;
}

constexpr std::array layouts{Layout::contiguous, Layout::striped, Layout::zigzag};

}  // namespace

std::string name(Layout layout) {
  switch (layout) {
    case Layout::contiguous: return "contiguous";
    case Layout::striped: return "striped";
    case Layout::zigzag: return "zigzag";
  }
  return "unknown";
}

Layout layout_named(const std::string& word) {
  const auto found =
      std::find_if(layouts.begin(), layouts.end(), [&](Layout layout) { return name(layout) == word; });
  require(found != layouts.end(), "no placement is called " + word);
  return *found;
}

Placement::Placement(Layout layout, Index seq, int ranks) : layout_(layout), seq_(seq), ranks_(ranks) {
  require(ranks >= 1, "a placement needs at least one rank");
  require(seq >= 0, "a sequence has at least zero tokens");
}

Runs Placement::runs(int rank) const {
  require(rank >= 0 && rank < ranks_, "Placement: no such rank");
  Runs runs;
  switch (layout_) {
    case Layout::contiguous: runs.push_back(slice(seq_, rank, ranks_)); break;
    case Layout::striped: runs.push_back({rank, ranks_, (seq_ - rank + ranks_ - 1) / ranks_}); break;
    case Layout::zigzag:
      runs.push_back(slice(seq_, rank, 2 * ranks_));
      runs.push_back(slice(seq_, 2 * ranks_ - 1 - rank, 2 * ranks_));
      break;
  }
  std::erase_if(runs, [](const Run& run) { return run.count <= 0; });
  return joined(runs);
}

Index Placement::max_tokens() const {
  Index most = 0;
  for (int rank = 0; rank < ranks_; ++rank) most = std::max(most, tokens(rank));
  return most;
}

}  // namespace ring_attention
