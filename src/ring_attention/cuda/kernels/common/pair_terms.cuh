/// \file
/// The softcap, the bias and the dropout of the pairs of one query, inside kernels.
///
/// A kernel is a template of its task. For a task without them pair_row() returns a NoPairRow, which costs nothing.
#pragma once

#include "ring_attention/attention/dropout_hash.hpp"
#include "ring_attention/cuda/kernels.hpp"
#include "ring_attention/cuda/math.cuh"

namespace ring_attention::cuda {

template <class Task>
constexpr bool has_pairs = requires(const Task& task) { task.pairs; };

/// The matrix [queries][positions] of the bias that a query head uses, and the row of a query in it.
__device__ inline int bias_matrix(const AttentionTask& task, const PairTerms& pairs, int batch_head) {
  const int batch = pairs.bias_batches == 1 ? 0 : batch_head / task.heads;
  return batch * pairs.bias_heads + (pairs.bias_heads == 1 ? 0 : batch_head % task.heads);
}
__device__ inline Index bias_row(const AttentionTask& task, const PairTerms& pairs, int matrix, int query) {
  return (static_cast<Index>(matrix) * task.queries + query) * pairs.positions;
}

/// The global position of a key of the range. `key` is an index into the shard.
__device__ inline Index position_of(const KeyRange& range, int key) {
  return range.tokens.begin + (key - range.first) * range.tokens.stride;
}

/// The score of a product under a softcap, in the same units; 0: no cap.
__device__ inline float capped_product(float product, float cap) {
  return cap == 0 ? product : cap * tanhf(product / cap);
}

/// The pairs of one query of one head with the keys of one range.
class PairRow {
 public:
  /// The query may be one behind the last: then only dropped() is called.
  __device__ PairRow(const AttentionTask& task, const PairTerms& pairs, int batch_head, int query,
                     const KeyRange& range)
      : range_(range),
        threshold_(pairs.threshold),
        kept_(pairs.kept),
        cap_(log2_e * pairs.softcap),
        drops_(pairs.dropout != nullptr) {
    if (query >= task.queries) return;
    if (pairs.bias != nullptr)
      bias_ = pairs.bias + bias_row(task, pairs, bias_matrix(task, pairs, batch_head), query);
    if (drops_) words_ = pairs.dropout[static_cast<Index>(batch_head) * task.queries + query];
  }

  /// The score of a product; both are in units of log 2.
  [[nodiscard]] __device__ float capped(float product) const { return capped_product(product, cap_); }
  /// ds times the derivative of capped() at `product`.
  [[nodiscard]] __device__ float product_gradient(float ds, float product) const {
    if (cap_ == 0) return ds;
    const float ratio = tanhf(product / cap_);
    return ds * ((1 - ratio) * (1 + ratio));
  }
  /// The score, in units of log 2, plus the bias of a key that the mask leaves.
  [[nodiscard]] __device__ float biased(float score, int key) const {
    return bias_ == nullptr ? score : score + log2_e * bias_[position_of(range_, key)];
  }
  /// p = 2^(score + bias - lse) of such a key; 0 if the bias is -inf, also where lse is.
  [[nodiscard]] __device__ float weight(float score, float lse, int key) const {
    const float s = biased(score, key);
    return s == -infinity ? 0 : exp2f(s - lse);
  }
  /// x times the factor of the dropout.
  [[nodiscard]] __device__ float dropped(float x, int key) const {
    if (!drops_) return x;
    const auto position = static_cast<std::uint32_t>(position_of(range_, key));
    return dropout_word(words_.low, words_.high, dropout_key(position)) < threshold_ ? kept_ * x : 0 * x;
  }
  /// ds = p (f dp - delta). A dropped pair has f = 0 and takes part in the softmax.
  [[nodiscard]] __device__ float score_gradient(float p, float dp, float delta, int key) const {
    return p * (dropped(dp, key) - delta);
  }

 private:
  const KeyRange& range_;
  const float* bias_ = nullptr;
  DropoutRow words_{};
  std::uint32_t threshold_;
  float kept_, cap_;
  bool drops_;
};

/// A row of pairs without any of them.
struct NoPairRow {
  [[nodiscard]] __device__ static float capped(float product) { return product; }
  [[nodiscard]] __device__ static float product_gradient(float ds, float) { return ds; }
  [[nodiscard]] __device__ static float biased(float score, int) { return score; }
  [[nodiscard]] __device__ static float weight(float score, float lse, int) { return exp2f(score - lse); }
  [[nodiscard]] __device__ static float dropped(float x, int) { return x; }
  [[nodiscard]] __device__ static float score_gradient(float p, float dp, float delta, int) {
    return p * (dp - delta);
  }
};

template <class Task>
__device__ auto pair_row(const Task& task, int batch_head, int query, const KeyRange& range) {
  if constexpr (has_pairs<Task>)
    return PairRow(task, task.pairs, batch_head, query, range);
  else
    return NoPairRow();
}

}  // namespace ring_attention::cuda
