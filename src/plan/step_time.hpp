/// \file
/// How long a step takes, by part.
#pragma once

#include "plan/machine.hpp"
#include "plan/ring_step.hpp"
#include "plan/workload.hpp"

namespace ring_attention::plan {

/// Seconds of a rank for one step: of the optimiser (training), of the prompt (prefill), of a token (decode). What
/// computing hides is left out: tensor to stages are communication that is exposed.
struct StepTime {
  double linear = 0;      ///< projections, feed-forward part, logits; training computes them again once
  double attention = 0;   ///< the pairs of a causal mask in equal parts; decode: the cache is read once
  double merge = 0;       ///< a ring's state (o, m, l) leaves and enters memory once more at each step
  double tensor = 0;      ///< all-reduces
  double all_to_all = 0;  ///< Ulysses; decode: the states (o, m, l) of the ranks that share a cache
  double ring = 0;        ///< hops that are longer than their steps, and the last hop of the gradients
  double weights = 0;     ///< gathers of weights and sums of gradients, beyond the computing of a layer
  double stages = 0;      ///< of a pipeline: activations and their gradients from stage to stage
  double bubble = 0;      ///< of a pipeline: a stage waits at the begin and at the end

  [[nodiscard]] double exposed() const { return tensor + all_to_all + ring + weights + stages; }
  [[nodiscard]] double total() const { return linear + attention + merge + exposed() + bubble; }
  /// Names and seconds, in the order above; stages and bubble where there is a pipeline.
  [[nodiscard]] std::vector<Part> parts() const;
};

[[nodiscard]] RingStep forward_step(const Workload& work, const Mesh& mesh, const Machine& machine);
[[nodiscard]] RingStep backward_step(const Workload& work, const Mesh& mesh, const Machine& machine);

/// Closed form. It takes no noise, and all steps alike.
///
/// A pipeline of p stages with v chunks each and m micro-batches: m / p times one micro-batch through all layers, as if all
/// stages were equal (embedding and logits included); a message for each chunk, direction and micro-batch; and the bubble,
/// (p - 1) / (v m) of that (Narayanan et al., arXiv 2104.04473, section 2.2). Gradients are summed and weights gathered
/// once a step.
[[nodiscard]] StepTime step_time(const Workload& work, const Mesh& mesh, const Machine& machine);

/// FLOP of one step that the model needs: 6 a parameter and token in training, 2 in a prefill or decode, and attention's
/// under the causal mask; nothing that is computed again.
[[nodiscard]] double model_flops(const Workload& work);
/// Model FLOP utilisation (Chowdhery et al., arXiv 2204.02311): the share of the peak of all ranks.
[[nodiscard]] double utilisation(const Workload& work, const Mesh& mesh, const Machine& machine,
                                 double seconds);

/// Seconds of what step_time calls attention, merge and ring, by the recurrence: a step on its diagonal is longer than
/// the others, and hops inside a node are shorter than those between nodes. For a machine that hides messages.
[[nodiscard]] double simulated_ring(const Workload& work, const Mesh& mesh, const Machine& machine);

}  // namespace ring_attention::plan
