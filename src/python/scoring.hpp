/// \file
/// The keywords that say how scores are formed, as the library's `Scoring`.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "ring_attention/attention/mask_sets.hpp"
#include "ring_attention/attention/scoring.hpp"

namespace ring_attention::python {

/// The keywords of Python's functions; the package's docstrings say what they mean.
struct ScoringArguments {
  bool causal = false;
  std::optional<std::pair<Index, Index>> window = {};                    ///< keys before and after; -1: all
  std::optional<std::vector<Index>> documents = {};                      ///< boundaries
  std::vector<std::pair<Index, Index>> blocks = {}, global_tokens = {};  ///< begin, end; a prefix is a block
  Index sink_tokens = 0, chunk = 0;                                      ///< 0: none
  /// How many intervals a query has, and begin and end of each interval of each query.
  std::optional<std::pair<Index, std::vector<Index>>> intervals = {};
  bool alibi = false;
  std::optional<double> scale = {};  ///< else 1 / sqrt(dim)
  std::optional<double> softcap = {};
  double dropout = 0;
  std::uint64_t seed = 0;
  std::vector<double> sinks = {};
  std::optional<Index> q_offset = {};  ///< else keys - queries
  Index same_bits = 0;                 ///< how the sums are added: tokens of a tile of exact sums; 0: none
  /// The positions of queries and of keys, on one process; otherwise 0, 1, ...
  std::optional<std::pair<std::vector<Index>, std::vector<Index>>> positions = {};
};

/// The keywords as attributes of _core.Scoring.
inline void bind_scoring(pybind11::module_& module) {
  using A = ScoringArguments;
  pybind11::class_<A>(module, "Scoring")
      .def(pybind11::init<>())
      .def_readwrite("causal", &A::causal)
      .def_readwrite("window", &A::window)
      .def_readwrite("documents", &A::documents)
      .def_readwrite("blocks", &A::blocks)
      .def_readwrite("global_tokens", &A::global_tokens)
      .def_readwrite("sink_tokens", &A::sink_tokens)
      .def_readwrite("chunk", &A::chunk)
      .def_readwrite("intervals", &A::intervals)
      .def_readwrite("alibi", &A::alibi)
      .def_readwrite("scale", &A::scale)
      .def_readwrite("softcap", &A::softcap)
      .def_readwrite("dropout", &A::dropout)
      .def_readwrite("seed", &A::seed)
      .def_readwrite("sink", &A::sinks)
      .def_readwrite("q_offset", &A::q_offset)
      .def_readwrite("same_bits", &A::same_bits)
      .def_readwrite("positions", &A::positions);
}

/// The mask's sets; null without any.
[[nodiscard]] inline std::shared_ptr<const KeySets> mask_sets_of(const ScoringArguments& arguments) {
  if (arguments.intervals) {
    const auto& [width, numbers] = *arguments.intervals;
    std::vector<Interval> rows;
    for (std::size_t i = 0; i + 1 < numbers.size(); i += 2) rows.push_back({numbers[i], numbers[i + 1]});
    return std::make_shared<const MaskRows>(std::move(rows),
                                            static_cast<int>(std::min(width, largest_count)));
  }
  MaskSets::Sets sets;
  for (const auto& [begin, end] : arguments.blocks) sets.blocks.push_back({begin, end});
  for (const auto& [begin, end] : arguments.global_tokens) sets.globals.push_back({begin, end});
  sets.sink_tokens = arguments.sink_tokens;
  sets.chunk = arguments.chunk;
  return sets.any() ? std::make_shared<const MaskSets>(std::move(sets)) : nullptr;
}

/// \param q        of this rank
/// \param queries, keys  of all ranks
[[nodiscard]] inline Scoring scoring_of(const ScoringArguments& arguments, const Shape& q, Index queries,
                                        Index keys) {
  Scoring scoring;
  scoring.scale = arguments.scale.value_or(1 / std::sqrt(static_cast<double>(q.dim)));
  scoring.mask.offset = arguments.q_offset.value_or(keys - queries);
  if (arguments.window && arguments.window->first >= 0) scoring.mask.left = arguments.window->first;
  if (arguments.window && arguments.window->second >= 0) scoring.mask.right = arguments.window->second;
  if (arguments.causal) scoring.mask.right = 0;
  if (arguments.documents) scoring.mask.documents = std::make_shared<const Documents>(*arguments.documents);
  scoring.mask.sets = mask_sets_of(arguments);
  if (arguments.alibi) scoring.alibi_slopes = alibi_slopes(q.heads);
  scoring.softcap = arguments.softcap.value_or(0);
  scoring.sinks = arguments.sinks;
  scoring.dropout.probability = arguments.dropout;
  scoring.dropout.seed = arguments.seed;
  return scoring;
}

}  // namespace ring_attention::python
