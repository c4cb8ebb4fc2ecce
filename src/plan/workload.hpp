/// \file
/// `Workload`: what is to be computed.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "plan/mesh.hpp"
#include "plan/model_shape.hpp"
#include "plan/volume.hpp"

namespace ring_attention::plan {

enum class Phase {
  training,  ///< one step of the optimiser: forward and backward
  prefill,   ///< a forward over a whole prompt
  decode     ///< one new token of each sequence, against a cache of the context's length
};

/// A decoder under a causal mask, in numbers of 2 bytes with sums in float. The ring has the zigzag placement.
///
/// Training: weights, gradients and optimiser are in equal parts on all ranks (ZeRO-3); a layer keeps its input, out
/// and lse, and computes all but attention again (Li et al., DistFlashAttn, arXiv 2310.03294); activations between the
/// products are cut over the tensor ranks (Megatron's sequence parallelism).
///
/// A pipeline (Narayanan et al., arXiv 2104.04473): each stage has consecutive layers, in `chunks` pieces of the
/// interleaved schedule, and micro-batches pass the stages one forward and one backward in turn (1F1B). Its ranks keep the
/// weights and gradients of their stage; the optimiser is over all ranks.
struct Workload {
  ModelShape model;
  Phase phase = Phase::training;
  double context = 0;      ///< tokens of a sequence
  double batch = 1;        ///< sequences of all ranks together
  double element = 2;      ///< bytes of a number
  double micro_batch = 1;  ///< sequences of a replica that pass a pipeline together
  int chunks = 1;          ///< pieces of layers of a stage
  bool recomputes = true;  ///< training; false: all activations of a layer are kept

  /// Micro-batches of a step; 1 without a pipeline.
  [[nodiscard]] double micro_batches(const Mesh& mesh) const {
    return mesh.pipeline > 1 ? sequences(mesh) / micro_batch : 1;
  }
  /// What passes the layers together: a micro-batch, or all of it without a pipeline.
  [[nodiscard]] Workload one_pass(const Mesh& mesh) const {
    Workload pass = *this;
    pass.batch /= micro_batches(mesh);
    return pass;
  }

  /// Tokens of a rank, of all its sequences.
  [[nodiscard]] double tokens(const Mesh& mesh) const { return sequences(mesh) * context / mesh.context(); }
  [[nodiscard]] double sequences(const Mesh& mesh) const { return batch / mesh.data; }
  /// Attention of one layer, as the ranks of one tensor rank's group share it.
  [[nodiscard]] Attention attention(const Mesh& mesh) const {
    return {sequences(mesh),
            context / mesh.context(),
            model.heads / mesh.tensor,
            std::max<Index>(1, model.kv_heads / mesh.tensor),
            model.dim(),
            element};
  }
};

/// One line of an account: bytes or seconds.
struct Part {
  std::string name;
  double value = 0;
};

[[nodiscard]] inline double sum(const std::vector<Part>& parts) {
  double all = 0;
  for (const Part& part : parts) all += part.value;
  return all;
}

}  // namespace ring_attention::plan
