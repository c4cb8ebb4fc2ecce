#include "ring_attention/attention/mask_sets.hpp"

#include <algorithm>
#include <span>

#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

Interval common(const Interval& a, const Interval& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

std::string text_of(const Interval& interval) {
  return std::to_string(interval.begin) + ":" + std::to_string(interval.end);
}

std::string list_of(const char* name, const std::vector<Interval>& intervals) {
  std::string list;
  for (const Interval& each : intervals) list += (list.empty() ? "" : ",") + text_of(each);
  return std::string(name) + " " + (list.empty() ? "none" : list);
}

/// The interval of an ascending list that contains a position, or an empty one.
Interval containing(const std::vector<Interval>& intervals, Index position) {
  const auto after = std::ranges::upper_bound(intervals, position, {}, &Interval::begin);
  if (after == intervals.begin() || position >= std::prev(after)->end) return {0, 0};
  return *std::prev(after);
}

/// What is wrong with a list whose intervals lie in [0, keys), ascend and have no key twice.
std::string fault_in(std::span<const Interval> intervals, Index keys, bool may_be_empty) {
  Index last = 0;
  for (const Interval& each : intervals) {
    if (!within(each.begin, 0, keys) || !within(each.end, 0, keys) || each.begin > each.end ||
        (!may_be_empty && each.empty()))
      return text_of(each) + " is no interval begin:end of the " + counted(keys, "key");
    if (each.empty()) continue;
    if (each.begin < last)
      return text_of(each) + " begins before " + std::to_string(last) +
             ", where the interval before it ends: they ascend and do not overlap";
    last = each.end;
  }
  return "";
}

}  // namespace

std::optional<std::string> MaskSets::fault(Index queries, Index keys) const {
  const auto& [blocks, sink_tokens, globals, chunk] = sets;
  if (!within(sink_tokens, 0, largest_position)) return "sink tokens: a number of keys, 0 to 2^53";
  if (!within(chunk, 0, largest_position)) return "a chunk is a number of tokens, 0 to 2^53";
  if (const std::string wrong = fault_in(blocks, keys, false); !wrong.empty())
    return "blocks (a prefix is the first one): " + wrong;
  if (const std::string wrong = fault_in(globals, keys, false); !wrong.empty())
    return "global tokens: " + wrong;
  if (globals.size() > 2)
    return "global tokens: " + std::to_string(globals.size()) + " runs, and at most 2 are possible: query " +
           std::to_string(std::max<Index>(queries - 1, 0)) +
           " could need more than four intervals of keys: the runs, the sink tokens and its own";
  return std::nullopt;
}

std::string MaskSets::text() const {
  return list_of("blocks", sets.blocks) + ", sink tokens " + std::to_string(sets.sink_tokens) + ", " +
         list_of("global tokens", sets.globals) + ", chunk " + std::to_string(sets.chunk);
}

bool MaskSets::may_show(const Interval& at, const Interval& keys, bool documents) const {
  const auto meets = [](const Interval& a, const Interval& b) { return !common(a, b).empty(); };
  if (sets.sink_tokens > 0 && (documents || keys.begin < sets.sink_tokens)) return true;
  return std::ranges::any_of(sets.globals,
                             [&](const Interval& run) { return meets(run, at) || meets(run, keys); }) ||
         std::ranges::any_of(sets.blocks,
                             [&](const Interval& block) { return meets(block, at) && meets(block, keys); });
}

Intervals MaskSets::seen(Index, Index at, Interval band, Interval document, bool causal) const {
  const Interval open{document.begin, causal ? std::min(document.end, at + 1) : document.end};
  if (const Index chunk = sets.chunk; chunk > 0) {
    const Index distance = at - document.begin, in_chunk = (distance % chunk + chunk) % chunk;
    band = common(band, {at - in_chunk, at - in_chunk + chunk});
  }
  if (!containing(sets.globals, at).empty()) band = open;
  if (const Interval block = common(containing(sets.blocks, at), document); !block.empty())
    band = {std::min(band.begin, block.begin), std::max(band.end, block.end)};
  Intervals seen;
  seen.add(band);
  seen.add(common({document.begin, document.begin + sets.sink_tokens}, open));
  for (const Interval& run : sets.globals) seen.add(common(run, open));
  return seen;
}

std::optional<std::string> MaskRows::fault(Index queries, Index keys) const {
  if (width < 1 || std::ssize(rows) % width != 0 || std::ssize(rows) / width != queries)
    return "intervals: " + std::to_string(rows.size()) + " of them, " + std::to_string(width) +
           " for a query, and there are " + std::to_string(queries) +
           " queries: give an array [queries, m, 2]";
  for (Index query = 0; query < queries; ++query) {
    const std::span row(rows.data() + query * width, static_cast<std::size_t>(width));
    const std::string whose = "intervals of query " + std::to_string(query) + ": ";
    if (const std::string wrong = fault_in(row, keys, true); !wrong.empty()) return whose + wrong;
    const Index count = width - std::ranges::count_if(row, &Interval::empty);
    if (count > Intervals::most)
      return whose + std::to_string(count) + " of them, and at most four are possible";
  }
  if (width > Intervals::most)
    return "intervals: " + std::to_string(width) +
           " for each query, and at most four are possible: leave out the empty ones";
  return std::nullopt;
}

std::string MaskRows::text() const {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a of the numbers, byte by byte
  for (const Interval& each : rows)
    for (const Index number : {each.begin, each.end})
      for (int byte = 0; byte < 8; ++byte)
        hash = (hash ^ (static_cast<std::uint64_t>(number) >> (8 * byte) & 0xffU)) * 0x100000001b3U;
  return std::to_string(rows.size()) + " intervals, " + std::to_string(width) + " for a query, hash " +
         std::to_string(hash);
}

Intervals MaskRows::seen(Index query, Index, Interval band, Interval, bool) const {
  Intervals seen;
  const auto row = static_cast<std::size_t>(query * width);
  for (std::size_t i = row; i < row + static_cast<std::size_t>(width) && query >= 0 && i < rows.size(); ++i)
    seen.add(common(rows[i], band));
  return seen;
}

}  // namespace ring_attention
