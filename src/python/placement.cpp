#include "python/placement.hpp"

#include <pybind11/stl.h>

#include "python/scoring.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/balance/balanced.hpp"

namespace ring_attention::python {

namespace py = pybind11;

Placement placement_of(const PlacementArgument& argument, Index tokens, int ranks, Index tile,
                       const std::optional<std::vector<Index>>& documents, Index offset) {
  if (const auto* const given = std::get_if<Placement>(&argument)) {
    if (given->seq() != tokens || given->ranks() != ranks)
      throw InputError("placement is over " + counted(given->ranks(), "rank") + " and of " +
                       counted(given->seq(), "token") + " where " + std::to_string(ranks) + " and " +
                       std::to_string(tokens) +
                       " are due: call balanced() for them; it takes as many queries as keys");
    return *given;
  }
  const PlacementKind kind = placement_kind_named(std::get<std::string>(argument));
  if (tile == 0) return {kind, tokens, ranks};
  const auto packed = documents ? std::make_shared<const Documents>(*documents) : nullptr;
  return {kind, Tiling(tile, packed, offset).cuts(tokens), ranks};
}

namespace {

/// A placement that balances the mask of a call, of `seq` queries and as many keys.
Placement balanced_for(Index seq, int ranks, const ScoringArguments& arguments) {
  if (!within(seq, 0, largest_position) || ranks < 1)
    throw InputError("balanced: seq is at least 0, and ranks at least 1");
  const Scoring scoring = scoring_of(arguments, {1, 1, seq, 1}, seq, seq);
  if (!scoring.mask.valid()) throw InputError("balanced: window and q_offset are at most 2^53");
  if (scoring.mask.sets != nullptr)
    if (const auto fault = scoring.mask.sets->fault(seq, seq)) throw InputError("balanced: " + *fault);
  return balanced(seq, ranks, scoring.mask, arguments.same_bits);
}

}  // namespace

void bind_placement(py::module_& module) {
  py::class_<Placement>(module, "Placement")
      .def(py::init([](const std::vector<std::vector<std::pair<Index, Index>>>& shards, Index pieces) {
             std::vector<TokenRanges> ranges(shards.size());
             for (std::size_t rank = 0; rank < shards.size(); ++rank)
               for (const auto& [begin, end] : shards[rank]) ranges[rank].push_back({begin, 1, end - begin});
             return Placement(std::move(ranges), pieces);
           }),
           py::arg("shards"), py::arg("pieces") = 0)
      .def_property_readonly("seq", &Placement::seq)
      .def_property_readonly("ranks", &Placement::ranks)
      .def_property_readonly("pieces", &Placement::pieces)
      .def("ranges", [](const Placement& self, int rank) {
        std::vector<std::pair<Index, Index>> ranges;
        for (const TokenRange& range : self.ranges(rank)) ranges.emplace_back(range.begin, range.end());
        return ranges;
      });
  module.def("balanced", &balanced_for, py::call_guard<py::gil_scoped_release>());
}

}  // namespace ring_attention::python
