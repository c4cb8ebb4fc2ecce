#include "program/decode/options.hpp"

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

constexpr const char* examples = R"(Examples:
  mpirun -n 4 ring-attention decode --q q.npy --k k.npy --v v.npy --prompt 1000 --out results --check
      The first 1000 tokens at once on a ring of 4, the others one by one. results/ gets out.npy and
      lse.npy for all tokens, as `run --causal` writes them.
  mpirun -n 8 ring-attention decode --random 1,32,4096,128 --kv-heads 8 --placement zigzag --check
      A random problem: 2048 tokens of prompt, 2048 decoded.

--placement says where the tokens of the prompt go. A new token goes to rank position mod N (with
--same-bits: tile mod N), and no key moves. For each token a rank sends the state of one query, whatever
the number of keys. q, k and v have the same number of tokens. The files are like those of `run`.

Exit codes: 0 done, 1 the check failed, 2 bad input. If a rank is killed, or nothing moves for
--timeout, the job ends with another nonzero code.)";

}  // namespace

void declare_decode_options(CommandLine& command, DecodeOptions& options) {
  command.section("Input");
  command.option("--q", options.q, "Queries, .npy");
  command.option("--k", options.k, "Keys, .npy");
  command.option("--v", options.v, "Values, .npy");
  command.list("--random", options.random, "B,H,S,D", "A random problem of this shape instead of files",
               any_length);
  command.option("--kv-heads", options.kv_heads, "KV heads of --random; 0 means as many as H", {0});
  command.option("--value-dim", options.value_dim, "Columns of the v of --random; 0 means as many as D", {0});
  command.option("--seed", options.seed, "Seed of --random", any_seed);
  command.option("--prompt", options.prompt,
                 "Tokens that are computed at once before the others are decoded (default half of them)",
                 {0, largest_position});
  command.section("Output");
  command.option(
      "--out", options.out,
      "Directory for out.npy, lse.npy and report.json; made if missing. What a killed run left there "
      "(*.npy.part) is removed");
  command.flag(
      "--check", options.check,
      "Compare with one causal forward, dense and in double; above 16384 tokens a sample of the rows");
  command.flag("--json", options.json, "Print the report as one JSON object instead of text");
  declare_trace_options(command, options);
  command.section("Scores");
  command.option("--scale", options.scale, "Factor of q.k (default 1/sqrt(D))");
  command.option("--softcap", options.softcap,
                 "CAP: the product x = scale q.k becomes CAP tanh(x / CAP), before a bias is added");
  command.list("--window", options.window, "LEFT,RIGHT",
               "A query sees LEFT keys before its position, -1 means all; it sees none after it",
               {-1, largest_position});
  command.flag("--alibi", options.alibi, "Add the ALiBi bias, -slope(head) * distance");
  command.option("--sink", options.sink,
                 "Attention sinks, .npy with one logit per query head, which has no value");
  command.section("Prompt");
  command.choice("--placement", options.placement, {"contiguous", "striped", "zigzag"},
                 "Which tokens of the prompt a rank holds");
  command.choice("--transport", options.transport, {"auto", "overlapped", "odd-even"},
                 "How K,V of the prompt move: while ranks compute (auto), or between two steps");
  declare_cpu_options(command, options);
  command.choice("--engine", options.engine, {"auto", "fast", "readable"},
                 "fast (auto): SIMD; readable: lesson 03's tiles");
  declare_same_bits(command, options, true);
  declare_job_options(command, options);
  command.needs("--isa", "--engine", {"auto", "fast"});  // threads share the cache with either engine
  for (const char* file : {"--q", "--k", "--v"}) command.exclude("--random", file);
  for (const char* word : {"--kv-heads", "--value-dim", "--seed"}) command.needs(word, "--random");
  command.footer(examples);
}

void validate(const DecodeOptions& options) {
  validate(static_cast<const RunOptions&>(options));
  if (!options.window.empty() && options.window[1] > 0)
    throw InputError(
        "--window LEFT,RIGHT: decode sees no key after the query's position, so RIGHT is 0 or -1");
}

}  // namespace ring_attention
