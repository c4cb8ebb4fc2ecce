#include "plan/memory.hpp"

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

/// What a layer keeps of a token of all tensor ranks: its input, out and lse; or what each product and norm reads.
double kept_bytes(const Workload& work) {
  const ModelShape& model = work.model;
  const double hidden = static_cast<double>(model.hidden),
               lse = static_cast<double>(model.heads) * float_bytes;
  if (work.recomputes) return 2 * hidden * work.element + lse;
  const double kv = 2 * static_cast<double>(model.kv_heads * model.dim());
  return (6 * hidden + kv + 3 * static_cast<double>(model.ffn)) * work.element + lse;
}

/// Weights, gradients and optimiser.
double state(const Workload& work, const Mesh& mesh) {
  const double parameters = work.model.parameters(), once = 2 * work.element;
  if (mesh.pipeline == 1) return state_bytes * parameters / mesh.ranks();
  return once * parameters / (mesh.pipeline * mesh.tensor) + (state_bytes - once) * parameters / mesh.ranks();
}

std::vector<Part> training_memory(const Workload& whole, const Mesh& mesh) {
  const Workload work = whole.one_pass(mesh);
  const ModelShape& model = work.model;
  const double layers = static_cast<double>(model.layers) / mesh.pipeline, tensor = mesh.tensor,
               e = work.element;
  const double tokens = work.tokens(mesh), in_float = float_bytes / e;
  const auto [q, kv] = head_bytes(work, mesh);
  const bool gathers = mesh.pipeline == 1 && mesh.replicas() > 1;
  const KvShards shards = ring_shards(mesh.ring);
  return {
      {"weights, gradients, optimiser", state(work, mesh)},
      {"gathered layers", gathers ? 3 * e * model.layer_parameters() / tensor : 0},
      {"checkpoints", passes_in_flight(whole, mesh) * layers * tokens / tensor * kept_bytes(work)},
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

double passes_in_flight(const Workload& work, const Mesh& mesh) {
  const double p = mesh.pipeline, interleaved = work.chunks > 1 ? (p - 1) / work.chunks : 0;
  return std::min(work.micro_batches(mesh), p + interleaved);
}

KvShards ring_shards(int ranks) { return ranks > 1 ? KvShards{4, 6} : KvShards{2, 2}; }

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
