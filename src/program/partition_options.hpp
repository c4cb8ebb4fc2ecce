/// \file
/// The flags for how the ranks divide the work, which `run` and `bench` share.
#pragma once

#include <optional>
#include <string>

#include "cli/command_line.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/partitions.hpp"

namespace ring_attention {

struct PartitionOptions {
  std::string parallel = "ring";
  std::optional<Index> ulysses;  ///< U of a hybrid
  std::string why;               ///< of --parallel auto, once it has chosen

  [[nodiscard]] bool is_auto() const { return parallel == "auto"; }
  [[nodiscard]] bool all_gathers() const { return parallel == "all-gather"; }
  /// Not of auto, before it has chosen.
  [[nodiscard]] Division division() const {
    return division_named(parallel, static_cast<int>(ulysses.value_or(1)));
  }
};

/// Adds --parallel and --ulysses under the present heading.
void declare_partition_options(CommandLine& command, PartitionOptions& options);

/// \param transport  --transport
/// \throws InputError, one line, for flags that do not go together
void validate_partition(const PartitionOptions& options, const std::string& transport);

/// What a partition is chosen for.
struct PartitionedWork {
  Shape q;     ///< global
  KvShape kv;  ///< likewise
  bool causal = false;
  Index element = 4;  ///< bytes
  bool gradients = false;
};

/// --parallel auto: takes the partition that `ring-attention plan` expects to be fastest, and says why. Another choice
/// stays.
void choose_partition(PartitionOptions& options, const std::string& device, const PartitionedWork& work,
                      int ranks);

/// Where this rank is. Collective.
/// \throws AgreedError, one line, when the ranks cannot be divided so
[[nodiscard]] RankGrid agreed_grid(const Communicator& comm, const PartitionOptions& options);

/// \throws AgreedError, one line, when the ranks cannot share these heads; it names the numbers of ranks that can.
/// Collective.
void require_shareable_heads(const Communicator& comm, const RankGrid& grid, Index heads, Index kv_heads);

}  // namespace ring_attention
