/// \file
/// `ring-attention plan placements`: how well each placement balances a mask, and how much it sends.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "program/run/mask_flags.hpp"

namespace ring_attention {

struct PlacementsOptions {
  Index seq = 16384, ranks = 8;
  bool causal = false;
  std::vector<Index> window;  ///< LEFT, RIGHT; -1: unlimited; empty: no window
  std::string documents;      ///< a file of cu_seqlens; empty: one document
  MaskFlags masks;
  bool json = false;
};

void declare_placements_options(CommandLine& command, PlacementsOptions& options);

/// Prints a row for each placement. One process is enough.
/// \throws InputError for more ranks than a search takes, and a bad file
void placements_command(const PlacementsOptions& options);

}  // namespace ring_attention
