/// \file
/// The keywords that say how scores are formed, as the library's `Scoring`.
#pragma once

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "ring_attention/attention/scoring.hpp"

namespace ring_attention::python {

/// The keywords of Python's functions; the package's docstrings say what they mean.
struct ScoringWords {
  bool causal = false;
  std::optional<std::pair<Index, Index>> window = {};  ///< keys before and after; -1: all
  std::optional<std::vector<Index>> documents = {};    ///< boundaries
  bool alibi = false;
  std::optional<double> scale = {};  ///< else 1 / sqrt(dim)
  double dropout = 0;
  std::uint64_t seed = 0;
  std::vector<double> sinks = {};
  std::optional<Index> q_offset = {};  ///< else keys - queries
  Index same_bits = 0;                 ///< how the sums are added: Options::same_bits
};

/// \param q        of this rank
/// \param queries, keys  of all ranks
[[nodiscard]] inline Scoring scoring_of(const ScoringWords& words, const Shape& q, Index queries,
                                        Index keys) {
  Scoring scoring;
  scoring.scale = words.scale.value_or(1 / std::sqrt(static_cast<double>(q.dim)));
  scoring.mask.offset = words.q_offset.value_or(keys - queries);
  if (words.window && words.window->first >= 0) scoring.mask.left = words.window->first;
  if (words.window && words.window->second >= 0) scoring.mask.right = words.window->second;
  if (words.causal) scoring.mask.right = 0;
  if (words.documents) scoring.mask.documents = std::make_shared<const Documents>(*words.documents);
  if (words.alibi) scoring.alibi_slopes = alibi_slopes(q.heads);
  scoring.sinks = words.sinks;
  scoring.dropout.probability = words.dropout;
  scoring.dropout.seed = words.seed;
  return scoring;
}

}  // namespace ring_attention::python
