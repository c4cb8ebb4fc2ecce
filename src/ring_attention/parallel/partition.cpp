#include "ring_attention/parallel/partition.hpp"

#include <algorithm>
#include <array>

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

constexpr std::array<const char*, 4> names{"ring", "ulysses", "hybrid",
                                           "all-gather"};  // in the order of Partition

}  // namespace

std::string name(Partition partition) { return names.at(static_cast<std::size_t>(partition)); }

Partition partition_named(const std::string& word) {
  const auto found = std::ranges::find(names, word);
  require(found != names.end(), "no partition is called " + word);
  return static_cast<Partition>(found - names.begin());
}

RankGrid Division::grid(int rank, int ranks) const {
  if (partition == Partition::hybrid) return {rank, ranks, ulysses};
  return {rank, ranks, partition == Partition::ulysses ? ranks : 1};
}

}  // namespace ring_attention
