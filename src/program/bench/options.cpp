#include "program/bench/options.hpp"

#include "program/placement_choice.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

constexpr const char* bench_notes = R"(Examples:
  mpirun -n 4 ring-attention bench
      Four ranks, 8192 tokens, 8 heads of 64.
  mpirun -n 8 ring-attention bench --seq 65536 --heads 32 --kv-heads 8 --dim 128 --causal
      Grouped queries under a causal mask: contiguous and zigzag placement side by side.
  mpirun -n 8 ring-attention bench --device cuda --dtype bf16 --seq 262144 --heads 32 --dim 128
      On eight GPUs.
  mpirun -n 4 ring-attention bench --parallel hybrid --ulysses 2
      Two ranks share the heads, rings of two share the tokens.

What is measured, one after the other, each as the median over --repetitions of the slowest rank:
  compute     all steps of the ring, without messages
  messages    all hops of the ring, without computing
  in turn     the ring, with each hop after the step's computing
  overlapped  the ring, with each hop while the step computes: what run does
With --backward the same for the backward: K,V travel again, and dK,dV make one hop more.
With --parallel ulysses or hybrid the ring is a ring of the ranks with the same heads, and there are
  all-to-all  q, k, v to the ranks of their heads, and out back, without computing
              (backward: dO there; dQ, dK and dV back)
  whole       the all-to-alls, and the ring between them: what run does
With --parallel all-gather: the gather of all K,V (backward: and dK,dV to their owners), compute, and both.
The first two give F and beta, from which the model predicts the other two.
Ranks that share cores share F.)";

}  // namespace

void declare_bench_options(CommandLine& command, BenchOptions& options) {
  command.section("Problem");
  command.option("--seq", options.seq, "Tokens S, of all ranks together", any_length);
  command.option("--batch", options.batch, "Batch B");
  command.option("--heads", options.heads, "Query heads Hq");
  command.option("--kv-heads", options.kv_heads, "KV heads; 0 means as many as --heads", {0});
  command.option("--dim", options.dim, "Head dim D");
  command.flag("--causal", options.causal, "A query sees no key after its own position");
  command.flag("--backward", options.backward, "Also measure the backward");
  command.section("Measurement");
  command.option("--repetitions", options.repetitions, "Runs of each kind", {1, 10000});
  command.flag("--json", options.json, "Print the report as one JSON object instead of text");
  declare_trace_options(command, options);
  command.section("Ranks");
  declare_partition_options(command, options);
  std::vector<std::string> placements = placement_words();
  placements.insert(placements.begin(), options.placement);
  command.choice("--placement", options.placement, placements,
                 "What to measure; compare: contiguous, and with --causal zigzag; otherwise as run");
  declare_device_options(command, options, {"float32", "float64", "bf16", "fp16"});
  command.option(
      "--backward-kernel", options.backward_kernel,
      "Kernel of the backward, by its name in lesson 11; auto takes the fastest that is deterministic",
      "WORD");
  declare_cpu_options(command, options);
  declare_same_bits(command, options);
  declare_job_options(command, options);
  command.footer(bench_notes);
}

void validate(const BenchOptions& options) {
  validate_device(options);
  validate_partition(options, options.transport);
  if (options.placement != BenchOptions{}.placement && options.parallel == "ulysses")
    throw InputError("--placement goes with --parallel ring, hybrid or all-gather");
  if (options.backward_kernel != DeviceOptions{}.backward_kernel && !options.backward)
    throw InputError("--backward-kernel goes with --backward");
  if (options.dtype == "float64" && options.same_bits)
    throw InputError("--same-bits goes with float32, and --dtype is float64");
  require_countable(options.q(), "the problem has");
  if (options.kv_heads != 0 && options.heads % options.kv_heads != 0)
    throw InputError("--kv-heads " + std::to_string(options.kv_heads) + " must divide --heads, " +
                     std::to_string(options.heads));
}

}  // namespace ring_attention
