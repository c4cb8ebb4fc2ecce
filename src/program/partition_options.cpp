#include "program/partition_options.hpp"

#include "cli/table.hpp"
#include "plan/best_ulysses.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/ulysses/heads.hpp"

namespace ring_attention {

void declare_partition_options(CommandLine& command, PartitionOptions& options) {
  command.choice(
      "--parallel", options.parallel, {"ring", "ulysses", "hybrid", "all-gather", "auto"},
      "How the ranks divide the work. ring: a rank computes its tokens, and K,V travel around the ring; "
      "ulysses: an all-to-all gives it all tokens of some heads; hybrid: both, see --ulysses; "
      "all-gather: like ring, but a rank gets the K,V of all ranks first; auto: what plan expects to be "
      "fastest");
  command.option(
      "--ulysses", options.ulysses,
      "With --parallel hybrid: N ranks share the heads, and the ranks with the same heads form a ring. "
      "N must divide the ranks and the query heads, and divide the KV heads or be a multiple of them",
      {1, 1 << 20});
}

void validate_partition(const PartitionOptions& options, const std::string& transport) {
  const bool hybrid = options.parallel == "hybrid";
  if (hybrid && !options.ulysses)
    throw InputError("--parallel hybrid needs --ulysses N, the number of ranks that share the heads");
  if (!hybrid && options.ulysses) throw InputError("--ulysses goes with --parallel hybrid");
  if ((transport == "overlapped" || transport == "odd-even") &&
      (options.parallel == "ulysses" || options.all_gathers()))
    throw InputError("--transport " + transport + " goes with --parallel ring or hybrid");
}

void choose_partition(PartitionOptions& options, const std::string& device, const PartitionedWork& work,
                      int ranks) {
  if (!options.is_auto()) return;
  const plan::Machine machine = device == "cuda" ? plan::machine_named("8xh100") : plan::cpu_host();
  const plan::Attention layer{static_cast<double>(work.q.batch),
                              static_cast<double>(work.q.seq) / ranks,
                              work.q.heads,
                              work.kv.heads,
                              (work.q.dim + work.kv.value_dim) / 2,  // of k and v, and of q and out
                              static_cast<double>(work.element),
                              static_cast<double>(work.element),
                              static_cast<double>(work.kv.seq) / ranks};
  const int ulysses = plan::best_ulysses(layer, ranks, work.causal, machine, work.gradients),
            ring = ranks / ulysses;
  options.parallel = ulysses == 1 ? "ring" : ring == 1 ? "ulysses" : "hybrid";
  if (options.parallel == "hybrid") options.ulysses = ulysses;
  const auto sent = [&](int heads, int tokens) {
    const double backward = work.gradients ? plan::hybrid_backward(layer, heads, tokens).total() : 0;
    return human_bytes(static_cast<Index>(plan::hybrid_forward(layer, heads, tokens).total() + backward));
  };
  const std::string chosen =
      options.ulysses ? options.parallel + " with --ulysses " + std::to_string(ulysses) : options.parallel;
  options.why = chosen + ": a rank sends " + sent(ulysses, ring) +
                (work.gradients ? " forward and backward" : " forward") + ", in a ring " + sent(1, ranks) +
                (device == "cuda" ? "; computed for 8xh100" : "");
}

RankGrid agreed_grid(const Communicator& comm, const PartitionOptions& options) {
  std::optional<RankGrid> grid;
  agree(comm, [&] { grid = options.division().grid(comm.rank(), comm.size()); });
  return *grid;
}

void require_shareable_heads(const Communicator& comm, const RankGrid& grid, Index heads, Index kv_heads) {
  agree(comm, [&] { require_shareable(heads, kv_heads, grid.ulysses.size); });
}

}  // namespace ring_attention
