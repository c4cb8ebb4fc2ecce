#include "program/plan/options.hpp"

#include <algorithm>

#include "plan/names.hpp"
#include "program/plan/config.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

constexpr Bounds sizes, rank_numbers{1, Index{1} << 20};

constexpr const char* plan_notes = R"(Examples:
  ring-attention plan --model llama-3-70b --context 1048576 --ranks 256
      Training Llama 3 70B with a context of a million tokens on 32 nodes of eight H100.
  ring-attention plan --model llama-3-405b --phase prefill --context 131072 --ranks 32 --nics 1
      The time to the first token, where the eight GPUs of a node share one NIC.
  ring-attention plan --model llama-3-405b --context 8192 --batch 2048 --ranks 16384 --tensor 8 --pipeline 16 --chunks 8
      A pipeline of 16 stages, each with 8 chunks of layers.
  ring-attention plan --layers 48 --hidden 6144 --heads 48 --kv-heads 8 --machine 8xa100 --ranks 64 --json
      A model of your own.

The model is causal and in bf16; rates are the ones that published measurements reach. Lesson 14 explains every line.)";

std::vector<std::string> names(const auto& entries) {
  std::vector<std::string> all;
  for (const auto& entry : entries) all.push_back(entry.name);
  return all;
}

/// Replaces a size; the name says so.
void replace(plan::ModelShape& model, Index& size, const std::optional<Index>& given, const char* what) {
  if (!given) return;
  size = *given;
  model.name += format(", %s %lld", what, static_cast<long long>(*given));
}

void replace(plan::Machine& machine, double& rate, const std::optional<double>& given, double unit,
             const char* flag, const char* what) {
  if (!given) return;
  if (!(*given > 0)) throw InputError(format("%s must be above 0, not %g", flag, *given));
  rate = *given * unit;
  machine.name += format(", %s %g", what, *given);
}

void declare_model(CommandLine& command, PlanOptions& options) {
  command.section("Model (a size given here replaces the named model's)");
  command.choice("--model", options.model, names(plan::named_models()), "The model");
  command.option("--config", options.config, "A config.json of Hugging Face, instead of a named model");
  command.exclude("--config", "--model");
  command.option("--layers", options.layers, "Layers", sizes);
  command.option("--hidden", options.hidden, "Hidden size, a multiple of the heads", sizes);
  command.option("--heads", options.heads, "Query heads", sizes);
  command.option("--kv-heads", options.kv_heads, "KV heads; they divide the query heads", sizes);
  command.option("--ffn", options.ffn, "Hidden numbers of the feed-forward part, three matrices", sizes);
  command.option("--vocab", options.vocab, "Tokens of the vocabulary", sizes);
}

void declare_machine(CommandLine& command, PlanOptions& options) {
  command.section("Machine (a rate given here replaces the named machine's)");
  command.choice("--machine", options.machine, names(plan::named_machines()), "Nodes of these devices");
  command.option("--ranks", options.ranks, "Devices in all", rank_numbers);
  command.option("--flops", options.flops,
                 "TFLOP/s that a device sustains in products and in a forward of heads of 128");
  command.option("--memory", options.memory, "Memory of a device, in GB");
  command.option("--link", options.link, "GB/s between two devices of a node, in one direction");
  command.option("--nic", options.nic, "GB/s of a NIC, in one direction");
  command.option("--node", options.node, "Devices of a node", rank_numbers);
  command.option("--nics", options.nics, "NICs of a node", rank_numbers);
}

}  // namespace

plan::Workload PlanOptions::workload() const {
  plan::ModelShape shape = config.empty() ? plan::model_named(model) : model_of_config(config);
  replace(shape, shape.layers, layers, "layers");
  replace(shape, shape.hidden, hidden, "hidden");
  replace(shape, shape.heads, heads, "heads");
  replace(shape, shape.kv_heads, kv_heads, "KV heads");
  replace(shape, shape.ffn, ffn, "ffn");
  replace(shape, shape.vocab, vocab, "vocab");
  plan::validate(shape);
  const plan::Phase kind = phase == "training"  ? plan::Phase::training
                           : phase == "prefill" ? plan::Phase::prefill
                                                : plan::Phase::decode;
  plan::Workload work{shape, kind, static_cast<double>(context), static_cast<double>(batch)};
  if (pipeline == 1 && (chunks != 1 || micro_batch != 1))
    throw InputError("--chunks and --micro-batch go with --pipeline of 2 or more stages");
  work.micro_batch = static_cast<double>(micro_batch);
  work.chunks = static_cast<int>(chunks);
  work.recomputes = !keep_activations;
  return work;
}

plan::Machine PlanOptions::hardware() const {
  constexpr double tera = 1e12, giga = 1e9;
  plan::Machine device = plan::machine_named(machine);
  if (flops) device.linear_flops = *flops * tera;
  device.peak_flops = std::max(device.peak_flops, device.linear_flops);
  replace(device, device.attention_flops, flops, tera, "--flops", "TFLOP/s");
  replace(device, device.memory, memory, giga, "--memory", "GB");
  replace(device, device.link.beta, link, giga, "--link", "link GB/s");
  replace(device, device.nic.beta, nic, giga, "--nic", "NIC GB/s");
  device.node = node.value_or(device.node);
  device.nics = nics.value_or(device.nics);
  plan::validate(device);
  return device;
}

plan::MeshWish PlanOptions::wish() const {
  const auto size = [](const std::optional<Index>& given) {
    return given ? std::optional(static_cast<int>(*given)) : std::nullopt;
  };
  return {size(tensor), size(ulysses), size(ring), size(data), static_cast<int>(pipeline)};
}

void declare_plan_options(CommandLine& command, PlanOptions& options) {
  declare_model(command, options);
  command.section("Work");
  command.choice("--phase", options.phase, {"training", "prefill", "decode"}, "The step to plan");
  command.option("--context", options.context, "Tokens of a sequence; for decode, the tokens in the cache",
                 any_length);
  command.option("--batch", options.batch, "Sequences handled at once, on all ranks together", rank_numbers);
  command.flag("--keep-activations", options.keep_activations,
               "Keep what training would otherwise compute again");
  declare_machine(command, options);
  command.section("Mesh (searched, unless given)");
  command.option("--tensor", options.tensor, "Ranks that share the matrices of a layer", rank_numbers);
  command.option("--ulysses", options.ulysses, "Ranks that exchange tokens for heads", rank_numbers);
  command.option("--ring", options.ring, "Ranks of a ring", rank_numbers);
  command.option("--data", options.data, "Replicas, each with sequences of its own", rank_numbers);
  command.option("--pipeline", options.pipeline, "Stages of a pipeline, for training; not searched",
                 rank_numbers);
  command.option("--chunks", options.chunks, "Chunks of layers per stage, in the interleaved schedule",
                 rank_numbers);
  command.option("--micro-batch", options.micro_batch,
                 "Sequences of a replica that pass through a stage together", rank_numbers);
  command.needs("--keep-activations", "--phase", {"training"});
  command.section("Output");
  command.flag("--json", options.json, "Print the plan as one JSON object instead of text");
  command.footer(plan_notes);
}

}  // namespace ring_attention
