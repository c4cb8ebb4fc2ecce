/// \file
/// What a rank holds.
#pragma once

#include "plan/machine.hpp"
#include "plan/workload.hpp"

namespace ring_attention::plan {

/// The share of a device's memory that a plan uses. The rest is for the driver, the libraries and fragmentation.
inline constexpr double usable_memory = 0.92;

/// Tokens that the feed-forward part and the logits take at a time.
inline constexpr double chunk_tokens = 4096;

/// Shards of K or V (of c tokens) that a rank holds in a forward over N ranks, and of dK or dV in a backward.
struct KvShards {
  double forward = 0;    ///< K and V: two for each pair
  double gradients = 0;  ///< dK and dV
};
/// Current and incoming; backward: also one step's own (ring/backward.hpp).
[[nodiscard]] KvShards ring_shards(int ranks);

/// Micro-batches of which the first stage of a pipeline keeps the activations: it has begun them before the backward of
/// the first arrives. p; with v > 1 chunks a stage p + (p - 1) / v (Korthikanti et al., arXiv 2205.05198, section 4.2.3).
[[nodiscard]] double passes_in_flight(const Workload& work, const Mesh& mesh);

/// Bytes of a rank by part, each at its largest. Not all parts are there at the same time, so their sum is an upper bound:
/// 1.3 to 1.5 times what a step of this library's model allocates (tests/model/memory_test.cpp).
///
/// Training: 16 bytes a parameter (weight and gradient of 2, three floats of the optimiser) over all ranks; two layers
/// of gathered weights and one of gradients; of each layer the input, out and lse; attention's backward: q, out, dO,
/// dQ, four KV shards and six of gradients (ring/backward.hpp); a chunk of the feed-forward part and of the logits.
/// Where nothing is computed again, a layer keeps what each product reads. With a pipeline the weights and gradients of a
/// stage stay on its ranks, and checkpoints are those of the micro-batches in flight.
/// Prefill: all weights of a tensor rank, the KV cache, attention's forward with its state, the residual stream, a
/// chunk. Decode: the weights and the cache.
[[nodiscard]] std::vector<Part> memory(const Workload& work, const Mesh& mesh);

/// Does it fit?
[[nodiscard]] bool fits(const Workload& work, const Mesh& mesh, const Machine& machine);

/// The most tokens of a sequence that fit with this mesh; 0 when none does.
[[nodiscard]] double longest_context(Workload work, const Mesh& mesh, const Machine& machine);

}  // namespace ring_attention::plan
