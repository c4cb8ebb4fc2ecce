// Lesson 09, the idea: which tokens a rank holds decides how many pairs a causal mask leaves it at each step.
#pragma once

#include <algorithm>
#include <vector>

#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention::lesson {

using Tokens = std::vector<Index>;             // positions in the whole sequence
using Work = std::vector<std::vector<Index>>;  // pairs, [rank][step]

/// Chunk `part` of `parts` nearly equal ones: the first seq mod parts of them have one token more.
inline void add_chunk(Tokens& tokens, Index seq, Index part, Index parts) {
  const Index begin = part * (seq / parts) + std::min(part, seq % parts);
  const Index count = seq / parts + (part < seq % parts ? 1 : 0);
  for (Index i = begin; i < begin + count; ++i) tokens.push_back(i);
}

/// The tokens of rank r of n.
inline Tokens tokens_of(PlacementKind kind, Index seq, Index r, Index n) {
  Tokens tokens;
  switch (kind) {
    case PlacementKind::contiguous: add_chunk(tokens, seq, r, n); break;
    case PlacementKind::striped:
      for (Index i = r; i < seq; i += n) tokens.push_back(i);
      break;
    case PlacementKind::zigzag:
      add_chunk(tokens, seq, r, 2 * n);
      add_chunk(tokens, seq, 2 * n - 1 - r, 2 * n);
      break;
    case PlacementKind::balanced: break;  // a search deals chunks for one mask: README.md, Balanced
  }
  return tokens;
}

/// The pairs that a causal mask leaves: work[r][t] is what rank r computes at step t, with the K,V of rank
/// (r - t) mod N. The mask does not hide the same number of pairs from each rank.
inline Work count_pairs(const std::vector<Tokens>& shards) {
  const int n = static_cast<int>(shards.size());
  const auto shard = [&](int rank) -> const Tokens& { return shards[static_cast<std::size_t>(rank)]; };
  Work work;
  for (int r = 0; r < n; ++r) {
    auto& row = work.emplace_back();
    for (int t = 0; t < n; ++t) {
      Index& pairs = row.emplace_back(0);
      for (const Index query : shard(r))
        for (const Index key : shard(Ring{r, n}.owner(t)))
          if (key <= query) ++pairs;
    }
  }
  return work;
}

/// With a barrier a step lasts as long as its slowest rank: the critical path is the sum of these.
template <class Number>  // pairs, or seconds
double critical_path(const std::vector<std::vector<Number>>& work) {
  double path = 0;
  for (std::size_t step = 0; step < work.size(); ++step) {
    Number slowest = 0;
    for (const auto& rank : work) slowest = std::max(slowest, rank[step]);
    path += static_cast<double>(slowest);
  }
  return path;
}

}  // namespace ring_attention::lesson
