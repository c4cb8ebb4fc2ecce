/// \file
/// `ring-attention plan cells`: who computes which part of a small square of queries and keys at which step, what is sent,
/// and who waits, for each mask, placement and partition.
#pragma once

#include <optional>
#include <string>

#include "cli/command_line.hpp"

namespace ring_attention {

struct CellsOptions {
  std::optional<Index> ranks;  ///< else 2, 4 and 8
};

void declare_cells_options(CommandLine& command, CellsOptions& options);

/// One JSON object: the masks, cell by cell, and a play for each choice.
/// \throws InputError when 8 heads of 32 tokens cannot be divided by these ranks
[[nodiscard]] std::string cells_json(const CellsOptions& options);

/// Prints it. One process is enough.
void cells_command(const CellsOptions& options);

}  // namespace ring_attention
