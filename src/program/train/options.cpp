#include "program/train/options.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "model/bandit.hpp"
#include "model/line_retrieval.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

constexpr Bounds axis{1, 128};  // of an axis: the product of four fits an int

constexpr const char* train_notes = R"(Examples:
  mpirun -n 2 ring-attention train
      Line retrieval with the whole recipe: sequences of 64 to 4096 tokens, on a ring of two ranks.
  mpirun -n 4 ring-attention train --seq 1024 --tensor 2 --data 2 --fsdp
      Two ranks share the matrices of a layer, and each of the two pairs has sequences of its own.
      Ranks with the same weights keep a piece each of the weights and of the optimiser.
  mpirun -n 2 ring-attention train --checkpoint run --checkpoint-every 20
      Saves every 20 steps. After a kill, the same command resumes from the last step that was saved,
      on any number of ranks and any mesh.

Tasks:
  lines   Lines `key value`, then queries `key`. The answer is the value of the line with this key,
          anywhere before.
  bandit  One arm pays. Trajectories are random pulls `arm reward`. The answer is the arm that paid.
A token is a function of seed, sequence and position, so each rank makes its own. A step has 4096
tokens, or one longer sequence. At the end the model answers sequences that it has not seen: with all
tokens, and with a window of a quarter of them. An answer outside the window can only be guessed.

Axes of the mesh; their product is the number of ranks:
  tensor   A rank has some heads and hidden numbers: some columns and rows of the weights.
  ulysses  A rank has some heads in attention, and some tokens elsewhere.
  ring     A rank has some tokens; keys and values travel around the ring.
  data     A rank has some sequences.
Results are the same on every mesh up to rounding. On one mesh and with one instruction set
(--isa) they have the same bits, with or without --fsdp, even when a killed training resumes.
With --same-bits the weights, the moments and the curve of the loss have the same bits on every mesh
of ring and data ranks, for one --tile and without --fsdp.

A checkpoint is a directory step_N: parameters.npy, first_moment.npy and second_moment.npy, each an
array of the whole model, and checkpoint.json with the place of each matrix and the curve. It is
either complete or absent.

Exit codes: 0 done; 2 bad input, a full disk, or a loss that is not finite: the last checkpoint stays.
If a rank is killed, or nothing moves for --timeout, the job ends with another nonzero code.)";

model::Curriculum whole_curriculum(const std::string& task) {
  return task == "lines" ? model::line_retrieval_curriculum() : model::bandit_curriculum();
}

Index tokens_of_step(const std::string& task) {
  const model::Stage first = whole_curriculum(task).front();
  return first.seq * first.batch;
}

void declare_mesh(CommandLine& command, TrainOptions& options) {
  command.section("Mesh (the first axis not given of ring, data, ulysses, tensor takes the ranks left)");
  command.option("--tensor", options.tensor, "Ranks that share the matrices of a layer", axis);
  command.option("--ulysses", options.ulysses, "Ranks that exchange tokens for heads", axis);
  command.option("--ring", options.ring, "Ranks of a ring", axis);
  command.option("--data", options.data, "Replicas, each with sequences of its own", axis);
  for (const std::string name : {"tensor", "ulysses", "ring", "data"})
    command.renamed("--ranks-" + name, "--" + name);
  command.flag("--fsdp", options.fsdp,
               "Ranks with the same weights keep a piece each, and gather a layer when they need it");
}

void declare_model(CommandLine& command, TrainOptions& options) {
  command.section("Model");
  command.option("--layers", options.layers, "Layers", {1, 1 << 12});
  command.option("--width", options.width, "Width of a token's row, even", {1, 1 << 16});
  command.option("--heads", options.heads, "Query heads", {1, 1 << 12});
  command.option("--kv-heads", options.kv_heads,
                 "KV heads, a divisor of the heads; 0 means as many as --heads", {0, 1 << 12});
  command.option("--dim", options.dim, "Head dim", {1, 1 << 12});
  command.option("--ffn", options.hidden, "Hidden numbers of the feed-forward part", {1, 1 << 20});
  command.renamed("--hidden", "--ffn");  // in `plan` --hidden is the width of a row
  command.choice("--dtype", options.dtype, {"float32", "float64"}, "Type of all numbers");
}

}  // namespace

model::Curriculum TrainOptions::curriculum() const {
  const model::Curriculum whole = whole_curriculum(task);
  model::Curriculum stages;
  for (const model::Stage& stage : whole)
    if (stage.seq < seq) stages.push_back(stage);
  model::Stage last = whole[std::min(stages.size(), whole.size() - 1)];
  last.seq = seq;
  last.batch = std::max<Index>(1, tokens_of_step(task) / seq);
  stages.push_back(last);

  Index all = 0, before = 0, made = 0;
  for (const model::Stage& stage : stages) all += stage.steps;
  for (model::Stage& stage : stages) {
    before += stage.steps;
    const Index end = steps.value_or(all) * before / all;
    stage.steps = end - std::exchange(made, end);
  }
  std::erase_if(stages, [](const model::Stage& stage) { return stage.steps == 0; });
  return stages;
}

model::Recipe TrainOptions::recipe() const {
  model::Recipe recipe{.rate = rate, .last_rate = rate / 100, .steps = 0};
  for (const model::Stage& stage : curriculum()) recipe.steps += stage.steps;
  return recipe;
}

std::unique_ptr<model::Task> TrainOptions::training_task(const model::Stage& stage) const {
  const auto number = static_cast<std::uint64_t>(seed);
  if (task == "lines") return std::make_unique<model::LineRetrieval>(number, stage.seq);
  return std::make_unique<model::NeedleBandit>(number, stage.seq, stage.arms);
}

model::ModelShape TrainOptions::shape() const {
  const std::unique_ptr<model::Task> any = training_task(whole_curriculum(task).front());
  return {.vocabulary = any->vocabulary(),
          .first_class = any->first_class(),
          .classes = any->classes(),
          .layers = layers,
          .width = width,
          .heads = heads,
          .kv_heads = kv_heads == 0 ? heads : kv_heads,
          .dim = dim,
          .hidden = hidden};
}

ChosenMesh mesh_of(const TrainOptions& options, int ranks) {
  const auto given = [](const std::optional<Index>& size) { return static_cast<int>(size.value_or(1)); };
  ChosenMesh mesh{{given(options.tensor), given(options.ulysses), given(options.ring), given(options.data)},
                  {}};
  const int rest = ranks / std::max(1, std::min(ranks, mesh.shape.ranks()));
  for (const auto& [name, flag, size] : {std::tuple("ring", &options.ring, &mesh.shape.ring),
                                         std::tuple("data", &options.data, &mesh.shape.data),
                                         std::tuple("ulysses", &options.ulysses, &mesh.shape.ulysses),
                                         std::tuple("tensor", &options.tensor, &mesh.shape.tensor)})
    if (!*flag && mesh.rest.empty()) {
      mesh.rest = name;
      *size = rest;
    }
  (void)Mesh(0, ranks, mesh.shape);
  if (options.same_bits && (options.fsdp || mesh.shape.tensor * mesh.shape.ulysses > 1))
    throw InputError("--same-bits", to_string(mesh.shape) + (options.fsdp ? ", --fsdp" : ""),
                     "use ranks along ring and data only, without --fsdp");
  require_shareable(options.shape(), mesh.shape, mesh.shape.data);
  if (const Index batch = options.curriculum().back().batch; batch < mesh.shape.data)
    throw InputError(
        format("--seq %lld", static_cast<long long>(options.seq)),
        counted(batch, "sequence") + " a step for a data axis of " + std::to_string(mesh.shape.data),
        "use a data axis of at most " + std::to_string(batch) + ", or sequences of at most " +
            std::to_string(tokens_of_step(options.task) / mesh.shape.data) + " tokens");
  return mesh;
}

void declare_train_options(CommandLine& command, TrainOptions& options) {
  command.section("Task");
  command.choice("--task", options.task, {"lines", "bandit"}, "What the model learns");
  command.option(
      "--seq", options.seq,
      "Tokens of the longest sequences; shorter ones come first. Evaluated are these lengths and four times "
      "the longest, up to 16384",
      {1, 1 << 20});
  command.option("--steps", options.steps,
                 "Steps, divided among the lengths (default up to 400, depending on --seq)",
                 {1, 100'000'000});
  command.option("--rate", options.rate,
                 "Largest learning rate; it falls to a hundredth of this along a cosine");
  command.option("--seed", options.seed, "Seed of the weights and the sequences", any_seed);
  command.option("--evaluation-tokens", options.evaluation_tokens,
                 "Tokens at each length of the evaluation after the training", {1, 1 << 30});
  declare_mesh(command, options);
  declare_model(command, options);
  command.section("Output");
  command.option("--checkpoint", options.checkpoint,
                 "Directory, made if missing. When it holds a checkpoint, the training resumes from it");
  command.option("--checkpoint-every", options.checkpoint_every, "Steps between two checkpoints");
  declare_trace_options(command, options, "What each rank does in the second step");
  command.flag("--json", options.json,
               "Print one JSON object, with the curve of loss and accuracy, instead of text");
  declare_cpu_options(command, options);
  declare_same_bits(command, options, false,
                    "on every mesh of ring and data ranks, and any number of threads");
  declare_job_options(command, options);
  command.needs("--checkpoint-every", "--checkpoint");
  command.footer(train_notes);
}

void validate(const TrainOptions& options) {
  validate_job(options);
  if (options.same_bits && options.dtype == "float64")
    throw InputError("--same-bits goes with float32, and --dtype is float64");
  if (!(options.rate > 0)) throw InputError("--rate must be above 0");
  name_flag("--seq " + std::to_string(options.seq), [&] {
    for (const model::Stage& stage : options.curriculum()) (void)options.training_task(stage);
  });
  require_valid(options.shape());
}

}  // namespace ring_attention
