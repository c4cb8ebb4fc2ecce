#include "program/plan/cells.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "plan/ring_time.hpp"
#include "plan/volume.hpp"
#include "ring_attention/attention/visible_pairs.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/ulysses/heads.hpp"
#include "ring_attention/partitions.hpp"
#include "ring_attention/ring/kv_hops.hpp"

namespace ring_attention {
namespace {

using Json = nlohmann::ordered_json;

constexpr Index drawn_seq = 32, drawn_heads = 8, drawn_dim = 64, drawn_bytes = 2;  // of an element: bf16

struct NamedMask {
  const char* name;
  Mask mask;
};

std::vector<NamedMask> masks() {
  Mask window{7, 0};
  Mask documents;
  documents.right = 0;
  documents.documents = std::make_shared<Documents>(std::vector<Index>{0, 6, 20, drawn_seq});
  return {{"none", {}}, {"causal", Mask::causal()}, {"window", window}, {"documents", documents}};
}

Json cells_of(const Mask& mask) {
  Json rows = Json::array();
  for (Index query = 0; query < drawn_seq; ++query) {
    std::string row;
    for (Index key = 0; key < drawn_seq; ++key) row += mask.allowed(query, key) ? '#' : '.';
    rows.push_back(row);
  }
  return rows;
}

Json json_of_ranges(const TokenRanges& ranges) {
  Json json = Json::array();
  for (const TokenRange& range : ranges) json.push_back({range.begin, range.stride, range.count});
  return json;
}

/// The ranks of a ring in lockstep: a step ends when its slowest rank has computed.
struct Lockstep {
  std::vector<std::vector<Index>> work;  ///< [rank][step]: visible pairs times heads

  [[nodiscard]] Index slowest(std::size_t step) const {
    Index most = 0;
    for (const auto& rank : work) most = std::max(most, rank[step]);
    return most;
  }
  [[nodiscard]] Index wait(std::size_t rank) const {
    Index sum = 0;
    for (std::size_t step = 0; step < work[rank].size(); ++step) sum += slowest(step) - work[rank][step];
    return sum;
  }
  /// The work of all ranks, divided by the time in which all could compute: 1 when none waits.
  [[nodiscard]] double balance() const {
    Index done = 0, time = 0;
    for (const auto& rank : work)
      for (const Index step : rank) done += step;
    for (std::size_t step = 0; step < work.front().size(); ++step) time += slowest(step);
    return static_cast<double>(done) / static_cast<double>(time * std::ssize(work));
  }
};

/// Bytes that `rank` of a ring sends at `step`: the K,V that it holds, if a rank further on needs them.
Index hop_bytes(const Ring& ring, int step, const Placement& tokens, const std::vector<int>& hops,
                Index own_heads) {
  const int owner = ring.owner(step);
  if (step + 1 == ring.steps() || step + 1 > hops[static_cast<std::size_t>(owner)]) return 0;
  return 2 * tokens.tokens(owner) * own_heads * drawn_dim * drawn_bytes;
}

Json play(const std::string& partition, int ranks, const NamedMask& named, PlacementKind kind) {
  const int ulysses = partition == "hybrid" ? 2 : ranks;
  const Division division = division_named(partition, ulysses);
  const RankGrid first = division.grid(0, ranks);
  const Placement tokens(kind, drawn_seq, first.ring.size);
  const std::vector<int> hops = kv_hops(named.mask, tokens, tokens);
  const std::vector<Interval> heads = shared_heads(drawn_heads, first.ulysses.size);
  const plan::Attention layer{
      1, static_cast<double>(drawn_seq) / ranks, drawn_heads, drawn_heads, drawn_dim, drawn_bytes};
  const bool gathers = partition == "all-gather";
  const plan::Volume volume = gathers ? plan::all_gather_forward(layer, ranks)
                                      : plan::hybrid_forward(layer, first.ulysses.size, first.ring.size);
  Lockstep lockstep;
  Json of_ranks = Json::array();
  for (int rank = 0; rank < ranks; ++rank) {
    const RankGrid grid = division.grid(rank, ranks);
    const Ring ring = grid.ring.ring(rank);
    const TokenRanges queries = grid.shard(tokens);
    const Interval own = heads[static_cast<std::size_t>(grid.ulysses.index(rank))];
    Json steps = Json::array();
    Index sent = static_cast<Index>(volume.all_to_all + volume.gather);
    std::vector<Index>& work = lockstep.work.emplace_back();
    for (int step = 0; step < ring.steps(); ++step) {
      const Index pairs = visible_pairs(named.mask, queries, tokens.ranges(ring.owner(step)));
      const Index bytes = gathers ? 0 : hop_bytes(ring, step, tokens, hops, own.end - own.begin);
      if (work.empty() || !gathers)
        work.push_back(0);  // after an all-gather a rank waits for none until the end
      work.back() += pairs * (own.end - own.begin);
      sent += bytes;
      steps.push_back({grid.ring.at(rank, ring.owner(step)), pairs, bytes});  // a rank of the job
    }
    of_ranks.push_back({{"queries", json_of_ranges(queries)},
                        {"heads", {own.begin, own.end}},
                        {"next", grid.ring.at(rank, ring.next())},
                        {"steps", steps},
                        {"bytes", sent}});
  }
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) of_ranks[rank]["waits"] = lockstep.wait(rank);
  return {{"ranks", ranks},
          {"mask", named.name},
          {"placement", name(kind)},
          {"partition", partition},
          {"balance", lockstep.balance()},
          {"per_rank", of_ranks}};
}

}  // namespace

void declare_cells_options(CommandLine& command, CellsOptions& options) {
  command.option("--ranks", options.ranks, "Only this number of ranks, a divisor of 8 (default 2, 4 and 8)",
                 {2, 8});
}

std::string cells_json(const CellsOptions& options) {
  Json json{{"seq", drawn_seq}, {"heads", drawn_heads}, {"dim", drawn_dim}, {"element_bytes", drawn_bytes}};
  for (const NamedMask& mask : masks()) json["masks"][mask.name] = cells_of(mask.mask);
  for (const Index ranks : options.ranks ? std::vector{*options.ranks} : std::vector<Index>{2, 4, 8}) {
    if (!can_share_heads(drawn_heads, drawn_heads, ranks))
      throw InputError("--ranks " + std::to_string(ranks) + " does not divide 8 heads");
    for (const NamedMask& mask : masks())
      for (const char* const partition : {"ring", "ulysses", "hybrid", "all-gather"})
        for (const PlacementKind kind :
             {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag})
          json["plays"].push_back(play(partition, static_cast<int>(ranks), mask, kind));
  }
  return json.dump() + "\n";
}

}  // namespace ring_attention
