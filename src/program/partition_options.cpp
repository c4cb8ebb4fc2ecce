#include "program/partition_options.hpp"

#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/heads.hpp"

namespace ring_attention {

void declare_partition_options(CommandLine& command, PartitionOptions& options) {
  command.choice(
      "--parallel", options.parallel, {"ring", "ulysses", "hybrid", "all-gather"},
      "How the ranks divide the work. ring: a rank computes its tokens, and K,V go round; ulysses: "
      "an all-to-all gives it all tokens of some heads; hybrid: both, see --ulysses; all-gather: as "
      "ring, but a rank gets the K,V of all ranks first");
  command.option("--ulysses", options.ulysses,
                 "With --parallel hybrid: N ranks share the heads, and the ranks with the same heads are a "
                 "ring. N divides the ranks and the query heads, and divides the KV heads or is a multiple",
                 {1, 1 << 20});
}

void validate_partition(const PartitionOptions& options) {
  const bool hybrid = options.partition() == Partition::hybrid;
  if (hybrid && !options.ulysses)
    throw InputError("--parallel hybrid needs --ulysses N, the number of ranks that share the heads");
  if (!hybrid && options.ulysses) throw InputError("--ulysses goes with --parallel hybrid");
}

HybridPlace agreed_place(const Communicator& comm, const PartitionOptions& options) {
  std::optional<HybridPlace> place;
  agree(comm, [&] {
    place = place_in(options.partition(), static_cast<int>(options.ulysses.value_or(1)), comm.rank(),
                     comm.size());
  });
  return *place;
}

void require_shareable_heads(const Communicator& comm, const HybridPlace& place, Index heads,
                             Index kv_heads) {
  agree(comm, [&] { (void)HeadShare(heads, kv_heads, place.ulysses.size); });
}

}  // namespace ring_attention
