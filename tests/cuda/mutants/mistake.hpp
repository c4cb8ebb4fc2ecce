// Wrong biases, softcaps and dropouts that look right, for kernels 0 and 1. Those of the CPU's engines are in lesson 12.
#pragma once

namespace ring_attention::test {

enum class Mistake {
  none,
  columns_of_the_shard,       // the bias of a key is that at its index in the shard
  bias_times_scale,           // scale (q k^T + bias)
  bias_in_other_units,        // scores are in units of log 2, the bias is not
  bias_of_one_head,           // every head has that of the first
  bias_gradient_of_one_head,  // dBias is not summed over the heads that share the bias
  unguarded_weight,           // -inf - (-inf) where a bias hides all keys of a row
  positions_of_the_shard,     // the mask of a key is that of its index in the shard
  mask_of_one_head,
  mask_of_one_batch,
  drops_before_softmax,  // dropped scores are -inf: another operation
  scales_twice,
  no_scale,
  masks_gradient_of_scores,  // a dropped pair has no dS
  gradient_without_dropout,  // dS = P (dP - delta)
  cap_in_other_units,        // scores are in units of log 2, the softcap is not
  gradient_without_cap,      // dQ and dK from the gradient of the scores
};

inline Mistake mistake = Mistake::none;  // of all kernels

}  // namespace ring_attention::test
