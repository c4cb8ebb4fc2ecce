/// \file
/// Placements in Python: the keyword `placement`, and balanced().
#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "ring_attention/ring/placement.hpp"

namespace ring_attention::python {

/// The keyword `placement`: a word, or the value of balanced().
using PlacementArgument = std::variant<std::string, Placement>;

/// The placement of a keyword.
/// \param tile    0, or tokens of a tile: of which ranks then hold whole ones
/// \param offset  of queries in the sequence of the documents
Placement placement_of(const PlacementArgument& argument, Index tokens, int ranks, Index tile,
                       const std::optional<std::vector<Index>>& documents, Index offset);

/// Adds Placement and balanced() to the module.
void bind_placement(pybind11::module_& module);

}  // namespace ring_attention::python
