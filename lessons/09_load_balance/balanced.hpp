// What lesson 09 shows of a placement that a search finds for one mask.
#pragma once

#include "documents.hpp"
#include "ring_attention/attention/mask_sets.hpp"
#include "ring_attention/parallel/balance/balanced.hpp"

namespace ring_attention {

/// A digit for each chunk: its rank.
inline std::string ranks_of_chunks(const Placement& placement, Index chunk) {
  std::string digits(static_cast<std::size_t>((placement.seq() + chunk - 1) / chunk), '?');
  for (int rank = 0; rank < placement.ranks(); ++rank)
    for (const Index token : positions(placement.ranges(rank)))
      digits[static_cast<std::size_t>(token / chunk)] = static_cast<char>('0' + rank);
  return digits;
}

/// Who holds which chunk of four documents, and the tiles of each rank.
inline void show_deals(Lesson& lesson) {
  constexpr int ranks = 4;
  const Packed packed{"30, 20, 40, 10 %", {614, 410, 819, 205}};
  const Mask mask = packed.mask();
  const Index chunk = balanced_chunk(packed.tokens(), ranks);
  std::string documents;
  for (Index begin = 0; begin < packed.tokens(); begin += chunk)
    documents += static_cast<char>('a' + mask.documents->of(begin));
  lesson.say(format("  %-10s  ", "document") + documents);
  const Placement found = balanced(packed.tokens(), ranks, mask);
  for (const Placement& placement : {Placement(PlacementKind::contiguous, packed.tokens(), ranks),
                                     Placement(PlacementKind::zigzag, packed.tokens(), ranks), found}) {
    const Balance balance = balance_of(placement, mask);
    lesson.say(format("  %-10s  ", name(placement.kind()).c_str()) + ranks_of_chunks(placement, chunk) +
               format("  busiest %.2f", balance.relative(balance.busiest)));
  }
  const std::string digits = ranks_of_chunks(found, chunk);
  lesson.check("balanced: every rank has 8 chunks", std::ranges::all_of(std::string("0123"), [&](char rank) {
                 return std::ranges::count(digits, rank) == 8;
               }));
}

/// Each packed sequence with each placement, and a mask that is not causal.
inline void show_balanced(Lesson& lesson) {
  constexpr int ranks = 8;
  Table table({"mask", "contiguous", "striped", "zigzag", "balanced", "K,V hops", "ranges"});
  bool near_the_bound = true, near_the_best = true;
  const auto add_row = [&](const char* name, Index tokens, const Mask& mask) {
    std::vector<std::string> cells{name};
    std::vector<double> finish;
    const auto add = [&](const Placement& placement) {
      const Balance balance = balance_of(placement, mask);
      finish.push_back(balance.relative(balance.finish));
      cells.push_back(format("%.2f / %.2f", balance.relative(balance.busiest), finish.back()));
      return balance;
    };
    for (const PlacementKind kind : placement_kinds) (void)add({kind, tokens, ranks});
    const Balance balance = add(balanced(tokens, ranks, mask));
    near_the_bound = near_the_bound && finish.back() <= 1.08 * balance.relative(balance.bound);
    near_the_best = near_the_best && finish.back() <= 1.03 * std::ranges::min(finish) + 1e-9;
    cells.push_back(format(
        "%.0f %%", 100.0 * static_cast<double>(balance.hops) / static_cast<double>(tokens * (ranks - 1))));
    cells.push_back(std::to_string(balance.ranges));
    table.row(cells);
  };
  for (const Packed& packed : packed_sequences) add_row(packed.name, packed.tokens(), packed.mask());
  Mask prefix = Mask::causal();
  prefix.sets = std::make_shared<const MaskSets>(MaskSets::Sets{.blocks = {{0, 4096}}});
  add_row("half a prefix", 8192, prefix);
  lesson.print("balanced", table);
  lesson.check("balanced finishes within 8 % of what no deal of chunks can beat", near_the_bound);
  lesson.check("and within 3 % of the best of the other placements", near_the_best);
}

}  // namespace ring_attention
