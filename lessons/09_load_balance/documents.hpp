// What lesson 09 counts of packed sequences: several documents in one sequence, and windows.
#pragma once

#include "results.hpp"
#include "ring_attention/ring/kv_hops.hpp"

namespace ring_attention {

struct Packed {
  const char* name;
  std::vector<Index> lengths;  // of the documents
  Index window = Mask::unlimited;

  [[nodiscard]] Index tokens() const { return std::accumulate(lengths.begin(), lengths.end(), Index{0}); }
  /// Causal, within documents, and within a window of `window` keys.
  [[nodiscard]] Mask mask() const {
    std::vector<Index> boundaries{0};
    for (const Index length : lengths) boundaries.push_back(boundaries.back() + length);
    Mask mask = Mask::causal();
    mask.left = window - 1;
    mask.documents = std::make_shared<Documents>(boundaries);
    return mask;
  }
};

/// The pairs that the mask leaves: [rank][step]. The keys of an interval are consecutive, so it is enough to
/// know how many keys of a rank are before a position.
inline Work count_packed(const Mask& mask, const Placement& placement) {
  const int ranks = placement.ranks();
  std::vector<TokenRanges> shards;
  for (int rank = 0; rank < ranks; ++rank) shards.push_back(placement.ranges(rank));
  const auto before = [&](int rank, Index position) {
    Index keys = 0;
    for (const TokenRange& range : shards[static_cast<std::size_t>(rank)]) keys += range.before(position);
    return keys;
  };
  Work work;
  for (int rank = 0; rank < ranks; ++rank) {
    auto& row = work.emplace_back(static_cast<std::size_t>(ranks));
    for (const Index query : positions(shards[static_cast<std::size_t>(rank)])) {
      for (int part = 0; part < mask.parts(); ++part) {
        const Interval visible = mask.visible(query, part);
        for (int step = 0; step < ranks; ++step) {
          const int owner = Ring{rank, ranks}.owner(step);
          row[static_cast<std::size_t>(step)] += before(owner, visible.end) - before(owner, visible.begin);
        }
      }
    }
  }
  return work;
}

/// The share of all N (N - 1) hops of K,V that is needed: each parcel goes to the last rank that computes with it.
inline double needed_hops(const Mask& mask, const Placement& placement) {
  const std::vector<int> hops = kv_hops(mask, placement, placement);
  const int ranks = placement.ranks();
  return static_cast<double>(std::accumulate(hops.begin(), hops.end(), 0)) / (ranks * (ranks - 1));
}

/// 8192 tokens. The log-normal lengths are one sample (mu = 5.9, sigma = 1).
inline const std::vector<Packed> packed_sequences{
    {"one", {8192}},
    {"2 equal", std::vector<Index>(2, 4096)},
    {"4 equal", std::vector<Index>(4, 2048)},
    {"16 equal", std::vector<Index>(16, 512)},
    {"7/8, then 8 short", {7168, 128, 128, 128, 128, 128, 128, 128, 128}},
    {"14, log-normal", {670, 359, 1250, 1007, 260, 1233, 157, 295, 201, 149, 1347, 492, 137, 635}},
    {"30, 20, 40, 10 %", {2458, 1638, 3277, 819}},
    {"one, window 1024", {8192}, 1024}};

/// Busiest rank over ideal / critical path over ideal, for each packed sequence and placement.
template <class CriticalPath>
void show_documents(Lesson& lesson, CriticalPath critical_path) {
  constexpr int ranks = 8;
  Table table({"documents", "contiguous", "striped", "zigzag", "K,V hops: c", "s", "z"});
  std::vector<std::vector<double>> path, hops;
  for (const Packed& packed : packed_sequences) {
    std::vector<std::string> cells{packed.name};
    std::vector<double>&longest = path.emplace_back(), &needed = hops.emplace_back();
    const Mask mask = packed.mask();
    for (const PlacementKind kind : placement_kinds) {
      const Placement placement(kind, packed.tokens(), ranks);
      const Work work = count_packed(mask, placement);
      Index pairs = 0;
      for (const auto& rank : work)
        pairs = std::max(pairs, std::accumulate(rank.begin(), rank.end(), Index{0}));
      longest.push_back(critical_path(work) / ideal(work));
      needed.push_back(needed_hops(mask, placement));
      cells.push_back(format("%.2f / %.2f", static_cast<double>(pairs) / ideal(work), longest.back()));
    }
    for (const double share : needed) cells.push_back(format("%.0f %%", 100 * share));
    table.row(cells);
  }
  lesson.print("documents", table);
  lesson.check("striped is within 2 % of ideal for all of them",
               std::ranges::all_of(path, [](const auto& row) { return row[1] < 1.02; }));
  lesson.check("14 documents of log-normal lengths: zigzag takes 2.85 times the ideal, more than contiguous",
               format("%.2f", path[5][2]) == "2.85" && path[5][2] > path[5][0]);
  lesson.check("one document, contiguous: half of the hops are needed; with the window of 1024, 7 of 56",
               hops[0][0] == 0.5 && hops.back()[0] * ranks * (ranks - 1) == ranks - 1);
  const Packed& packed = packed_sequences[5];
  Index pairs = 0;
  for (const Index length : packed.lengths) pairs += length * (length + 1) / 2;
  lesson.check("their pairs are the sum of s (s + 1) / 2",
               total(count_packed(packed.mask(), {PlacementKind::zigzag, packed.tokens(), ranks})) == pairs);
}

}  // namespace ring_attention
