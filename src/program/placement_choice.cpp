#include "program/placement_choice.hpp"

#include "program/backend.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/mpi/agreement.hpp"

namespace ring_attention {
namespace {

/// \param tile  of the same bits, or 0
PlacementChoice balanced_choice(Index queries, Index keys, int ranks, const Mask& mask, Index tile) {
  if (queries != keys)
    throw InputError("--placement balanced needs as many queries as keys, and there are " +
                     std::to_string(queries) + " and " + std::to_string(keys) + ": use another placement");
  const Placement placement = balanced(queries, ranks, mask, tile);
  return {placement, balance_of(placement, mask)};
}

}  // namespace

std::vector<std::string> placement_words() { return {"contiguous", "striped", "zigzag", "balanced", "auto"}; }

PlacementChoice choose_placement(const DeviceOptions& options, const std::string& word, Index queries,
                                 Index keys, int ranks, const Mask& mask) {
  const auto known = [&](PlacementKind kind) {
    return placements_of(options, kind, queries, keys, ranks, mask);
  };
  const Index tile = options.same_bits ? options.tile_of_same_bits() : 0;
  const bool has_balanced = queries == keys && ranks <= most_balanced_ranks &&
                            (tile <= 0 || mask.documents == nullptr || mask.offset == 0);
  if (word == "auto" && !has_balanced) return {known(PlacementKind::contiguous)};
  if (word != "auto" && word != name(PlacementKind::balanced)) return {known(placement_kind_named(word))};
  PlacementChoice best = balanced_choice(queries, keys, ranks, mask, tile);
  if (word != "auto") return best;
  for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::zigzag}) {
    const Placements tokens = known(kind);
    const Balance balance = balance_of(tokens.queries, mask);
    if (balance.finish * 100 <= best.balance->finish * 103 && balance.hops <= best.balance->hops)
      return {tokens, balance};
  }
  return best;
}

PlacementChoice agreed_placement(const Communicator& comm, const DeviceOptions& options,
                                 const std::string& word, Index queries, Index keys, int ranks,
                                 const Mask& mask) {
  std::optional<PlacementChoice> choice;
  agree(comm, [&] { choice = choose_placement(options, word, queries, keys, ranks, mask); });
  return *choice;
}

std::string describe(const Balance& balance) {
  return format("busiest rank %.2f, finish %.2f of an equal share, and no deal is below %.2f; at most ",
                balance.relative(balance.busiest), balance.relative(balance.finish),
                balance.relative(balance.bound)) +
         counted(balance.ranges, "range") + " a rank";
}

}  // namespace ring_attention
