#include "program/plan/placements.hpp"

#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/table.hpp"
#include "program/run/input.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/parallel/balance/balanced.hpp"

namespace ring_attention {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* placements_notes = R"(Examples:
  ring-attention plan placements --seq 131072 --ranks 64 --causal --documents lengths.npy
      Packed documents on 64 ranks.

A row of the table:
  busiest  tiles of the rank that computes most, relative to an equal share of all tiles that the mask leaves
  finish   when the last rank ends, in tiles, relative to the same: each rank waits for its two neighbours only
  hops     bytes of K,V over the ring, relative to N - 1 hops of all of them
  ranges   of the rank that has the most; a range is tokens at equal distances, and a GPU takes two in a launch)";

Mask mask_of(const PlacementsOptions& options) {
  Mask mask = band_of(options.causal, options.window);
  if (!options.documents.empty())
    mask.documents = std::make_shared<const Documents>(read_documents(options.documents, options.seq));
  validate(options.masks, options.causal, !options.window.empty());
  mask.sets = mask_sets_of(options.masks, options.seq, options.seq);
  return mask;
}

}  // namespace

void declare_placements_options(CommandLine& command, PlacementsOptions& options) {
  command.option("--seq", options.seq, "Tokens S, of all ranks together", any_length);
  command.option("--ranks", options.ranks, "Ranks N of the ring", {1, most_balanced_ranks});
  declare_band_flags(command, options.causal, options.window, options.documents);
  declare_mask_flags(command, options.masks);
  command.flag("--json", options.json, "Print one JSON object instead of text");
  command.footer(placements_notes);
}

void placements_command(const PlacementsOptions& options) {
  const Mask mask = mask_of(options);
  const int ranks = static_cast<int>(options.ranks);
  const auto begin = std::chrono::steady_clock::now();
  const Placement searched = balanced(options.seq, ranks, mask);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  Table table({"placement", "busiest", "finish", "hops", "ranges"});
  Json json{{"seq", options.seq}, {"ranks", ranks}, {"search_seconds", seconds.count()}};
  Balance balance;
  for (const Placement& placement : {Placement(PlacementKind::contiguous, options.seq, ranks),
                                     Placement(PlacementKind::striped, options.seq, ranks),
                                     Placement(PlacementKind::zigzag, options.seq, ranks), searched}) {
    balance = balance_of(placement, mask);
    const double hops =
        ranks > 1 ? static_cast<double>(balance.hops) / static_cast<double>(options.seq) / (ranks - 1) : 0;
    const std::string word = name(placement.kind());
    table.row({word, format("%.2f", balance.relative(balance.busiest)),
               format("%.2f", balance.relative(balance.finish)), format("%.2f", hops),
               std::to_string(balance.ranges)});
    json["placements"][word] = {{"busiest", balance.relative(balance.busiest)},
                                {"finish", balance.relative(balance.finish)},
                                {"hops", hops},
                                {"ranges", balance.ranges}};
  }
  json["chunk"] = balanced_chunk(options.seq, ranks);
  json["tiles"] = balance.tiles;
  json["bound"] = balance.relative(balance.bound);
  const std::string text = table.text() + "  balanced: chunks of " +
                           counted(balanced_chunk(options.seq, ranks), "token") + ", found in " +
                           human_seconds(seconds.count()) + "; no deal of them is below " +
                           format("%.2f", balance.relative(balance.bound)) + "\n";
  std::fputs((options.json ? json.dump(2) + "\n" : text).c_str(), stdout);
}

}  // namespace ring_attention
