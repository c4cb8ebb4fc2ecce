// Lesson 13, the idea: one layer on a rank that has some tokens of a sequence and some columns of the weights. What is
// kept for the backward, what is computed again, and who sums what.
#pragma once

#include <algorithm>
#include <span>
#include <utility>

#include "13_blockwise_transformer/rows.hpp"  // norms, projections: each token by itself
#include "model/rank_context.hpp"             // the groups of ranks; attention by a ring: lessons 08 and 10
#include "ring_attention/parallel/collectives/sum.hpp"  // a sum over a group, in the order of the ranks

namespace ring_attention::lesson {

struct Layer {
  const model::ModelShape& shape;
  const model::RankContext<double>& place;  // of this rank: its groups, its tokens, how it attends
  model::LayerParameters<const double> w;   // this rank's columns of wq, wk, wv, w1, and rows of wo, w2
  Scoring scoring;
  Index chunk;  // tokens of the feed-forward part at a time
};
using LayerGradients = model::LayerParameters<double>;

/// All that stays in memory of a layer until its backward: 2 h + heads numbers a token.
struct Kept {
  Rows x;
  AttentionResult<double> attended;  // out, lse
};

/// Ranks of tensor parallelism have different columns of a product: each has a term of the result.
inline Rows summed(const Layer& layer, Rows term) {
  all_reduce(*layer.place.tensor, std::span(term.data(), static_cast<std::size_t>(term.size())));
  return term;
}

/// relu(norm(y) w1) w2. The hidden numbers are 4 h a token: they are in memory for one chunk of tokens.
inline Rows feed_forward(const Layer& layer, const Rows& y) {
  Rows z(y.rows(), y.cols());
  for (Index first = 0; first < y.rows(); first += layer.chunk) {
    const Index rows = std::min(layer.chunk, y.rows() - first);
    const Hidden hidden(layer.w, y.middleRows(first, rows));
    z.middleRows(first, rows) = product(hidden.h, matrix(layer.w.w2));
  }
  return z;
}

/// From dz to the gradient of norm(y), and to those of w1 and w2. The hidden numbers of a chunk are computed again.
inline Rows feed_forward_gradient(const Layer& layer, const Rows& y, const Rows& dz,
                                  const LayerGradients& gradients) {
  Rows dn(y.rows(), y.cols());
  // Exercise: the chunks of feed_forward once more. forward: z = A w2, with A = relu(n w1); so which products give dw2,
  // dA, dw1 and dn? The gradient of relu is 0 where A is 0. A and n are the members h and n of Hidden (rows.hpp). Add
  // to matrix(gradients.w1) and matrix(gradients.w2), write rows of dn.
  still_empty("feed-forward gradient");
  return dn;
}

/// y = x + attention
inline Rows after_attention(const Layer& layer, const Kept& kept) {
  return kept.x + summed(layer, product(rows_of(kept.attended.out), matrix(layer.w.wo)));
}

/// z = y + feed-forward
inline Rows forward(const Layer& layer, Rows x, Kept& kept) {
  // Exercise: Projections(layer.shape, layer.place.tokens, layer.w, x) has q, k and v of x;
  // layer.place.attention->forward(q, k, v, layer.scoring) attends. Fill in `kept`. Then come the two sums: y = x +
  // attention, and y + feed-forward. Which term needs the ranks of tensor parallelism?
  still_empty("forward");
}

/// From dz to dx, and to the gradients of this rank's tokens, which are added to.
inline Rows backward(const Layer& layer, const Kept& kept, const Rows& dz, const LayerGradients& gradients) {
  const Rows y = after_attention(layer, kept);  // again: out is there, so attention is not computed again
  // Exercise: from back to front. z = y + feed-forward: dy is dz, and what comes through feed_forward_gradient and
  // norm_gradient(y, layer.w.norm_2, dn, gradients.norm_2). y = x + out wo: dwo += out^T dy and dout = dy wo^T, where
  // out is rows_of(kept.attended.out), and dO is heads_of(dout, layer.shape.dim). Make the Projections of kept.x again.
  // Then layer.place.attention->backward({q, out, lse, dO}, k, v, layer.scoring), which returns Gradients<double>, then
  // Projections::backward, and norm 1. Which two dn does `summed` need?
  still_empty("backward");
}

/// After the backward of all sequences: each rank has seen its own tokens only, and of a replicated K,V head some
/// queries only. The gains of the norms need no sum over the tensor ranks: each of these has the whole gradient.
/// \param piece  of this rank, all that it keeps with FSDP. A gather of the pieces makes a plain sum of it.
inline void sum_gradients(const model::RankContext<double>& place, const LayerGradients& gradients,
                          std::span<const double> all_of_the_layer, std::span<double> piece) {
  // Exercise: which gradients are sums over place.kv_replicas? all_reduce(*group, numbers) makes such a sum in place;
  // gradients.wq.elements() are the numbers of one gradient. All of them are sums over place.replicas, of which this
  // rank keeps its piece: reduce_scatter(*group, all, piece).
  still_empty("sum of the gradients");
}

}  // namespace ring_attention::lesson
