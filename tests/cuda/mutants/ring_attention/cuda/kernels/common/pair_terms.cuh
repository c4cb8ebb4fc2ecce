// In place of the header of the kernels: its pairs with one mistake, which cuda_mutants/mistake.hpp chooses.
#pragma once

#define PairRow RightPairRow
#define pair_row right_pair_row
#define bias_matrix right_bias_matrix
#include "src/ring_attention/cuda/kernels/common/pair_terms.cuh"
#undef PairRow
#undef pair_row
#undef bias_matrix

#include "cuda/mutants/mistake.hpp"

namespace ring_attention::cuda {

using test::Mistake;
using test::mistake;

/// The kernels call it to find the heads that share a matrix of dBias.
inline int bias_matrix(const AttentionTask& task, const PairTerms& pairs, int batch_head) {
  const int matrix = right_bias_matrix(task, pairs, batch_head);
  if (mistake == Mistake::bias_gradient_of_one_head)
    for (int other = 0; other < batch_head; ++other)
      if (right_bias_matrix(task, pairs, other) == matrix) return -1;
  return matrix;
}

class PairRow {
 public:
  PairRow(const AttentionTask& task, const PairTerms& pairs, int batch_head, int query, const KeyRange& range)
      : scale_(task.scale),
        softcap_(pairs.softcap),
        drops_(pairs.dropout != nullptr),
        in_shard_{{range.first, 1, range.tokens.count}, range.first},
        right_(task, pairs, batch_head, query, range),
        of_shard_(task, pairs, batch_head, query, in_shard_),
        of_first_head_(task, pairs, 0, query, range),
        of_batch_0_(task, pairs, batch_head % task.heads, query, range) {}

  [[nodiscard]] float capped(float product) const {
    return mistake == Mistake::cap_in_other_units ? capped_product(product, softcap_)
                                                  : right_.capped(product);
  }
  [[nodiscard]] float product_gradient(float ds, float product) const {
    return mistake == Mistake::gradient_without_cap ? ds : right_.product_gradient(ds, product);
  }
  [[nodiscard]] float biased(float score, int key) const {
    if (mistake == Mistake::drops_before_softmax && is_dropped(key)) return -infinity;
    const float bias = for_bias().biased(0, key);
    if (mistake == Mistake::bias_times_scale) return score + scale_ * bias;
    if (mistake == Mistake::bias_in_other_units) return score + bias / log2_e;
    return score + bias;
  }
  [[nodiscard]] float weight(float score, float lse, int key) const {
    const float s = biased(score, key);
    if (mistake == Mistake::unguarded_weight) return exp2f(s - lse);
    return s == -infinity ? 0 : exp2f(s - lse);
  }
  [[nodiscard]] float dropped(float x, int key) const {
    const float factor = for_dropout().dropped(1, key);
    if (mistake == Mistake::scales_twice) return factor * factor * x;
    if (mistake == Mistake::no_scale) return factor == 0 ? 0 : x;
    return factor * x;
  }
  [[nodiscard]] float score_gradient(float p, float dp, float delta, int key) const {
    if (mistake == Mistake::masks_gradient_of_scores && is_dropped(key)) return 0;
    if (mistake == Mistake::gradient_without_dropout) return p * (dp - delta);
    return p * (dropped(dp, key) - delta);
  }

 private:
  [[nodiscard]] bool is_dropped(int key) const { return drops_ && right_.dropped(1, key) == 0; }
  [[nodiscard]] const RightPairRow& for_bias() const {
    return mistake == Mistake::columns_of_the_shard ? of_shard_
           : mistake == Mistake::bias_of_one_head   ? of_first_head_
                                                    : right_;
  }
  [[nodiscard]] const RightPairRow& for_dropout() const {
    return mistake == Mistake::positions_of_the_shard ? of_shard_
           : mistake == Mistake::mask_of_one_batch    ? of_batch_0_
           : mistake == Mistake::mask_of_one_head     ? of_first_head_
                                                      : right_;
  }

  float scale_, softcap_;
  bool drops_;
  KeyRange in_shard_;
  RightPairRow right_, of_shard_, of_first_head_, of_batch_0_;
};

template <class Task>
auto pair_row(const Task& task, int batch_head, int query, const KeyRange& range) {
  if constexpr (has_pairs<Task>)
    return PairRow(task, task.pairs, batch_head, query, range);
  else
    return NoPairRow();
}

}  // namespace ring_attention::cuda
