// Attention as three dense steps, each on the whole matrix of scores: what tiles are compared with.
#pragma once

#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// Arrays of one problem. heads == kv_heads, and as many queries as keys.
struct DenseProblem {
  View<const float> q, k, v;  ///< [1, heads, seq, dim]
  float scale;
  View<float> out;
};

/// With Eigen. Each thread takes its part of the rows.
class DenseEigen {
 public:
  explicit DenseEigen(const DenseProblem& problem, int threads);
  void operator()();

 private:
  DenseProblem problem_;
  int threads_;
  Tensor<float> scores_;  // [1, 1, seq, seq], of one head
};

}  // namespace ring_attention
