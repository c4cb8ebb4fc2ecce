/// \file
/// `PlacementChoice`: what a flag --placement gives, and the balance that it is expected to have.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/device_options.hpp"
#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/parallel/balance/balanced.hpp"
#include "ring_attention/parallel/rank_grid.hpp"

namespace ring_attention {

/// The words of --placement where a search may deal the tokens.
[[nodiscard]] std::vector<std::string> placement_words();

struct PlacementChoice {
  Placements tokens;
  std::optional<Balance> balance = {};  ///< of balanced, and of what auto has chosen

  [[nodiscard]] std::string name() const { return ring_attention::name(tokens.queries.kind()); }
};

/// Which rank of a ring holds which tokens. auto takes the first of contiguous and zigzag that takes at most 3 %
/// longer than balanced and sends no more, and otherwise balanced; where there is no balanced placement, as for queries
/// and keys of different lengths, it is contiguous. It compares whole tiles of 64 x 64, which says little about shards of
/// fewer than about 1000 tokens.
/// \param word  one of placement_words()
/// \throws InputError where there is no such placement
[[nodiscard]] PlacementChoice choose_placement(const DeviceOptions& options, const std::string& word,
                                               Index queries, Index keys, int ranks, const Mask& mask);
/// Makes it on all ranks, which find the same placement. \throws AgreedError. Collective.
[[nodiscard]] PlacementChoice agreed_placement(const Communicator& comm, const DeviceOptions& options,
                                               const std::string& word, Index queries, Index keys, int ranks,
                                               const Mask& mask);

/// `busiest rank 1.02, finish 1.03 of an equal share, and no deal is below 1.00; at most 5 ranges a rank`.
[[nodiscard]] std::string describe(const Balance& balance);

}  // namespace ring_attention
