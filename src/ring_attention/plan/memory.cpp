#include "ring_attention/plan/memory.hpp"

#include <cmath>

namespace ring_attention::plan {
namespace {

constexpr double state_bytes = 16;  // of a parameter in training

/// Bytes of one vector of all of a rank's heads a token; of the K heads alike.
struct HeadBytes {
  double q, kv;
};

HeadBytes head_bytes(const Workload& work, const Mesh& mesh) {
  const Attention layer = work.attention(mesh);
  return {layer.bytes(static_cast<double>(layer.heads)), layer.bytes(sent_kv_heads(layer, mesh.ulysses))};
}

double cache(const Workload& work, const Mesh& mesh) {
  const Attention layer = work.attention(mesh);
  return static_cast<double>(work.model.layers) * 2 * layer.bytes(static_cast<double>(layer.kv_heads));
}

double chunk(const Workload& work, const Mesh& mesh) { return std::min(work.tokens(mesh), chunk_tokens); }

std::vector<Part> training_memory(const Workload& work, const Mesh& mesh) {
  const ModelShape& model = work.model;
  const double layers = static_cast<double>(model.layers), tensor = mesh.tensor, e = work.element;
  const double tokens = work.tokens(mesh), in_float = float_bytes / e;
  const auto [q, kv] = head_bytes(work, mesh);
  const double heads = static_cast<double>(model.heads), hidden = static_cast<double>(model.hidden);
  const KvShards shards = ring_shards(mesh.ring);
  return {
      {"weights, gradients, optimiser", state_bytes * model.parameters() / mesh.ranks()},
      {"gathered layers", mesh.replicas() > 1 ? 3 * e * model.layer_parameters() / tensor : 0},
      {"checkpoints", layers * tokens / tensor * (2 * hidden * e + heads * float_bytes)},
      {"attention", q * (3 + in_float) + kv * (shards.forward + shards.gradients * in_float)},
      {"feed-forward", 6 * e * chunk(work, mesh) * static_cast<double>(model.ffn) / tensor},
      {"logits", 2 * float_bytes * chunk(work, mesh) * static_cast<double>(model.vocab) / tensor},
  };
}

std::vector<Part> prefill_memory(const Workload& work, const Mesh& mesh) {
  const ModelShape& model = work.model;
  const double tensor = mesh.tensor, e = work.element;
  const auto [q, kv] = head_bytes(work, mesh);
  return {
      {"weights", e * model.parameters() / tensor},
      {"KV cache", cache(work, mesh)},
      {"attention", q * (2 + float_bytes / e) + kv * ring_shards(mesh.ring).forward},
      {"residual stream", 2 * e * work.tokens(mesh) * static_cast<double>(model.hidden) / tensor},
      {"feed-forward", 3 * e * chunk(work, mesh) * static_cast<double>(model.ffn) / tensor},
  };
}

}  // namespace

KvShards ring_shards(int ranks) { return ranks > 1 ? KvShards{4, 6} : KvShards{2, 2}; }

KvShards all_gather_shards(int ranks) { return {2.0 * ranks, 2.0 * ranks}; }

double double_ring_shards(int nodes, int width) { return ring_shards(width).forward + (nodes > 1 ? 2 : 0); }

std::vector<Part> memory(const Workload& work, const Mesh& mesh) {
  switch (work.phase) {
    case Phase::training: return training_memory(work, mesh);
    case Phase::prefill: return prefill_memory(work, mesh);
    case Phase::decode: break;
  }
  return {{"weights", work.element * work.model.parameters() / mesh.tensor}, {"KV cache", cache(work, mesh)}};
}

bool fits(const Workload& work, const Mesh& mesh, const Machine& machine) {
  return sum(memory(work, mesh)) <= usable_memory * machine.memory;
}

double longest_context(Workload work, const Mesh& mesh, const Machine& machine) {
  const auto holds = [&](double tokens) {
    work.context = tokens;
    return fits(work, mesh, machine);
  };
  double fit = mesh.context(), too_long = 0x1p60;  // a token a rank at least
  if (!holds(fit)) return 0;
  while (too_long - fit > 1) {
    const double middle = std::floor((fit + too_long) / 2);
    if (middle <= fit || middle >= too_long) break;
    (holds(middle) ? fit : too_long) = middle;
  }
  return fit;
}

}  // namespace ring_attention::plan
