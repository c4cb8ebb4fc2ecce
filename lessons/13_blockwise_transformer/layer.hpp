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
  for (Index first = 0; first < y.rows(); first += layer.chunk) {
    const Index rows = std::min(layer.chunk, y.rows() - first);
    const Hidden hidden(layer.w, y.middleRows(first, rows));
    const Rows of_chunk = dz.middleRows(first, rows);
    matrix(gradients.w2) += product(hidden.h.transpose(), of_chunk);
    const Rows dh = (hidden.h.array() > 0).select(product(of_chunk, matrix(layer.w.w2).transpose()), 0);
    matrix(gradients.w1) += product(hidden.n.transpose(), dh);
    dn.middleRows(first, rows) = product(dh, matrix(layer.w.w1).transpose());
  }
  return dn;
}

/// y = x + attention
inline Rows after_attention(const Layer& layer, const Kept& kept) {
  return kept.x + summed(layer, product(rows_of(kept.attended.out), matrix(layer.w.wo)));
}

/// z = y + feed-forward
inline Rows forward(const Layer& layer, Rows x, Kept& kept) {
  const Projections p(layer.shape, layer.place.tokens, layer.w, x);
  kept = {std::move(x), layer.place.attention->forward(p.q, p.k, p.v, layer.scoring)};
  const Rows y = after_attention(layer, kept);
  return y + summed(layer, feed_forward(layer, y));
}

/// From dz to dx, and to the gradients of this rank's tokens, which are added to.
inline Rows backward(const Layer& layer, const Kept& kept, const Rows& dz, const LayerGradients& gradients) {
  const Rows y = after_attention(layer, kept);  // again: out is there, so attention is not computed again
  const Rows dn_2 = summed(layer, feed_forward_gradient(layer, y, dz, gradients));
  const Rows dy = dz + norm_gradient(y, layer.w.norm_2, dn_2, gradients.norm_2);

  const Projections p(layer.shape, layer.place.tokens, layer.w, kept.x);  // again
  matrix(gradients.wo) += product(rows_of(kept.attended.out).transpose(), dy);
  const Tensor<double> d_out = heads_of(product(dy, matrix(layer.w.wo).transpose()), layer.shape.dim);
  Gradients<double> d = layer.place.attention->backward({p.q, kept.attended.out, kept.attended.lse, d_out},
                                                        p.k, p.v, layer.scoring);
  const Rows dn_1 = summed(layer, p.backward(std::move(d), layer.w, gradients));
  return dy + norm_gradient(kept.x, layer.w.norm_1, dn_1, gradients.norm_1);
}

/// After the backward of all sequences: each rank has seen its own tokens only, and of a replicated K,V head some
/// queries only. The gains of the norms need no sum over the tensor ranks: each of these has the whole gradient.
/// \param piece  of this rank, all that it keeps with FSDP. A gather of the pieces makes a plain sum of it.
inline void sum_gradients(const model::RankContext<double>& place, const LayerGradients& gradients,
                          std::span<const double> all_of_the_layer, std::span<double> piece) {
  all_reduce(*place.kv_replicas, gradients.wk.elements());
  all_reduce(*place.kv_replicas, gradients.wv.elements());
  reduce_scatter(*place.replicas, all_of_the_layer, piece);
}

}  // namespace ring_attention::lesson
