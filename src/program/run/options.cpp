#include "program/run/options.hpp"

#include "program/placement_choice.hpp"
#include "ring_attention/attention/dropout.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

constexpr const char* examples = R"(Examples:
  mpirun -n 4 ring-attention run --q q.npy --k k.npy --v v.npy --out results --causal --check
      Attention of your own arrays on 4 ranks. results/ gets out.npy, lse.npy and report.json.
  mpirun -n 4 ring-attention run --q q.npy --k k.npy --v v.npy --dout do.npy --out results
      The same with gradients: results/ also gets dq.npy, dk.npy and dv.npy.
  mpirun -n 4 ring-attention run --q q.npy --k k.npy --v v.npy --out results --device cuda
      The same on four GPUs.
  mpirun -n 8 ring-attention run --random 1,8,4096,64 --causal --placement zigzag --backward --check
      A random problem, balanced, checked against the dense reference; nothing is written.
  mpirun -n 8 ring-attention run --random 1,8,4096,64 --parallel hybrid --ulysses 4 --check
      Four ranks share the heads, rings of two share the tokens. --parallel ulysses: no ring.

Arrays are .npy files of float64, float32 or float16 in C order, [S, D], [H, S, D] or [B, H, S, D].
k and v may have fewer heads than q (a divisor: grouped-query attention) and a different length, and
v another D than q and k, which is then that of the result (on the CPU).
float64 in gives float64 out; otherwise the arithmetic and the results are float32.

Exit codes: 0 done, 1 the check failed, 2 bad input. If a rank is killed, or nothing moves for
--timeout, the job ends with another nonzero code.)";

}  // namespace

void declare_run_options(CommandLine& command, RunOptions& options) {
  command.section("Input");
  command.option("--q", options.q, "Queries, .npy");
  command.option("--k", options.k, "Keys, .npy");
  command.option("--v", options.v, "Values, .npy");
  command.option("--dout", options.dout,
                 "Gradient of the result, .npy of its shape: computes dq, dk and dv as well");
  command.list("--random", options.random, "B,H,S,D", "A random problem of this shape instead of files",
               any_length);
  command.option("--kv-heads", options.kv_heads, "KV heads of --random; 0 means as many as H", {0});
  command.option("--value-dim", options.value_dim, "Columns of the v of --random; 0 means as many as D", {0});
  command.flag("--backward", options.backward, "With --random: a random dO, and its gradients");
  command.option("--seed", options.seed, "Seed of --random", any_seed);
  command.section("Output");
  command.option(
      "--out", options.out,
      "Directory for out.npy, lse.npy and report.json; made if missing. What a killed run left there "
      "(*.npy.part) is removed");
  command.flag("--check", options.check,
               "Compare with the dense reference in double; above 16384 tokens some rows, and some keys of "
               "dk and dv");
  command.flag("--json", options.json, "Print the report as one JSON object instead of text");
  command.choice("--progress", options.progress, {"auto", "always", "never"},
                 "Progress line on stderr; auto: when that is a terminal");
  declare_trace_options(command, options);
  command.section("Scores");
  command.option("--scale", options.scale, "Factor of q.k (default 1/sqrt(D))");
  command.option("--softcap", options.softcap,
                 "CAP: the product x = scale q.k becomes CAP tanh(x / CAP), before a bias is added");
  declare_band_flags(command, options.causal, options.window, options.documents);
  declare_mask_flags(command, options.mask);
  command.flag("--alibi", options.alibi, "Add the ALiBi bias, -slope(head) * distance");
  command.option(
      "--bias", options.bias,
      "Bias of the scores, .npy [Sq, Sk], [H, Sq, Sk] or [B, H, Sq, Sk] with 1 for any B or H; -inf hides a "
      "key. With gradients: dbias");
  command.option(
      "--sink", options.sink,
      "Attention sinks, .npy with one logit per query head, which has no value. With gradients: dsink");
  command.option("--dropout", options.scoring.dropout.probability,
                 "Drop each probability with this probability, 0 to below 1");
  command.option("--dropout-seed", options.dropout_seed,
                 "Seed of --dropout: the mask depends on it and on positions, not on the ranks", any_seed);
  command.option("--q-offset", options.q_offset,
                 "Key position of the first query (default Sk - Sq, which aligns the ends)",
                 {-largest_position, largest_position});
  command.section("Ranks");
  declare_partition_options(command, options);
  command.choice(
      "--placement", options.placement, placement_words(),
      "Which tokens a rank holds; zigzag balances a causal mask, balanced any mask: a search deals "
      "chunks of tokens; auto: balanced, where contiguous or zigzag is not as good");
  command.choice("--kv-dtype", options.kv_dtype, {"same", "bf16"},
                 "Type of K,V in messages of a ring or all-gather: the type of the arithmetic, or bf16 "
                 "(float32 only): half the bytes");
  command.renamed("--wire", "--kv-dtype");
  declare_device_options(command, options, {"float32", "bf16", "fp16"});
  command.option(
      "--backward-kernel", options.backward_kernel,
      "Kernel of the backward, by its name in lesson 11; auto takes the fastest that is deterministic",
      "WORD");
  declare_cpu_options(command, options);
  command.choice("--engine", options.engine, {"auto", "fast", "readable"},
                 "fast (auto): SIMD and threads; readable: lesson 03's tiles, one thread");
  declare_same_bits(command, options, true);
  command.renamed("--block", "--tile");
  declare_job_options(command, options);
  for (const char* file : {"--q", "--k", "--v", "--dout"}) command.exclude("--random", file);
  for (const char* word : {"--kv-heads", "--value-dim", "--seed", "--backward"})
    command.needs(word, "--random");
  command.needs("--dropout-seed", "--dropout");
  for (const char* word : {"--threads", "--isa"}) command.needs(word, "--engine", {"auto", "fast"});
  command.footer(examples);
}

void validate(const RunOptions& options) {
  validate_device(options);
  validate_partition(options, options.transport);
  const RunOptions defaults;
  for (const auto& [flag, given] : {std::pair("--placement", options.placement != defaults.placement),
                                    std::pair("--kv-dtype", options.kv_dtype != defaults.kv_dtype)})
    if (given && options.parallel == "ulysses")
      throw InputError(std::string(flag) + " goes with --parallel ring, hybrid or all-gather");
  const bool any_file = !options.q.empty() || !options.k.empty() || !options.v.empty();
  const bool all_files = !options.q.empty() && !options.k.empty() && !options.v.empty();
  if (any_file && !all_files) throw InputError("--q, --k and --v belong together: give all three");
  if (!options.dout.empty() && !all_files) throw InputError("--dout goes with --q, --k and --v");
  if (!any_file && !options.is_random())
    throw InputError(
        "nothing to compute: give --q, --k and --v, or --random B,H,S,D: see ring-attention run --help");
  if (options.is_random()) {
    for (const Index columns : {options.random[3], options.value_dim})
      require_countable(options.random_shape().with_dim(columns), "--random asks for");
  }
  if (options.kv_heads != 0 && options.random[1] % options.kv_heads != 0)
    throw InputError("--kv-heads " + std::to_string(options.kv_heads) + " must divide the H of --random, " +
                     std::to_string(options.random[1]));
  if (all_files && options.out.empty() && !options.check)
    throw InputError("the result would go nowhere: give --out DIR, or --check");
  validate(options.mask, options.causal, !options.window.empty());
  const bool uses_positions = options.causal || !options.window.empty() || !options.documents.empty() ||
                              options.mask.chunk || options.alibi;
  if (options.q_offset && !uses_positions)
    throw InputError(
        "--q-offset changes nothing without --causal, --window, --documents, --chunk or --alibi");
  if (options.backward_kernel != defaults.backward_kernel && !options.wants_gradients())
    throw InputError("--backward-kernel goes with --backward or --dout");
  if (options.tile && !options.same_bits && options.engine != "readable")
    throw InputError(
        "--tile goes with --same-bits or --engine readable: the fast engine chooses its own tiles");
  if (options.same_bits && options.engine == "readable")
    throw InputError("--same-bits goes with --engine fast: the readable engines have no exact sums");
  if (options.softcap && !(*options.softcap > 0))
    throw InputError("--softcap must be a positive number; without the flag scores are not capped");
}

}  // namespace ring_attention
