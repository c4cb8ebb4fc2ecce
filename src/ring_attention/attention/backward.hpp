/// \file
/// The gradients, derived by hand: the readable tiled backward.
///
/// Source: Dao et al., FlashAttention, arXiv 2205.14135, appendix B.2, algorithm 4; the ring form in Liu et
/// al., arXiv 2310.01889, appendix A. The scores are computed again, tile by tile, from q, k and lse.
#pragma once

#include <utility>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/attention/row_dot.hpp"

namespace ring_attention {

/// begin(forward), then accumulate(kv, gradient) once per piece of keys, then finish() -> dQ.
/// T is float or double, and all sums are in T.
template <class T>
class BlockwiseBackward : public BackwardEngine<T> {
 public:
  using value_type = T;

  /// \param block  queries and keys in a tile
  explicit BlockwiseBackward(Scoring scoring, Index block = 64)
      : scoring_(std::move(scoring)), block_(block) {}

  /// Starts with dQ = 0 and dBias = 0. The queries are at `ranges`.
  void begin(const BackwardInputs<T>& forward, TokenRanges ranges);

  /// Adds to dQ what these keys contribute, and to `gradient` what these queries contribute to dK and dV.
  /// Calls `progress` after every tile.
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                  const Progress& progress = {}) override;

  /// dQ. Ends the work on these queries.
  [[nodiscard]] Tensor<T> finish() override { return std::move(grad_q_); }
  /// dBias, like the bias: dS, summed over what broadcasts.
  [[nodiscard]] TermGradients<T> term_gradients() override { return {std::move(grad_bias_)}; }

 private:
  /// One tile; its scores are in p.
  void differentiate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient, const Tile& tile);

  Scoring scoring_;
  Index block_;
  BackwardInputs<T> forward_;
  TokenRanges q_ranges_;
  Tensor<T> delta_;      // [batch, heads, seq, 1]
  Tensor<T> grad_q_;     // [batch, heads, seq, dim]
  Tensor<T> grad_bias_;  // like the bias
  Matrix<T> p_;          // one tile of scores, then of P, then of capped products
  Matrix<T> ds_;         // dO V^T, then dS, of that tile
  Matrix<T> factors_;    // of its dropout
};

template <class T>
void BlockwiseBackward<T>::begin(const BackwardInputs<T>& forward, TokenRanges ranges) {
  forward.require_queries(ranges);
  forward_ = forward;
  q_ranges_ = std::move(ranges);
  delta_ = row_dot(forward.grad_out, forward.out, forward.grad_lse);
  grad_q_ = Tensor<T>(forward.q.shape());
  grad_bias_ = Tensor<T>(forward.bias.shape());
}

template <class T>
void BlockwiseBackward<T>::accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                                      const Progress& progress) {
  const Index group = require_keys(forward_.shapes(), kv, gradient);
  for_each_tile(forward_.q.shape(), q_ranges_, kv.ranges, block_, group, [&](const Tile& tile) {
    if (score_tile(scoring_, tile, forward_.q, kv.k, forward_.bias, p_)) differentiate(kv, gradient, tile);
    if (progress) progress();
  });
}

template <class T>
void BlockwiseBackward<T>::differentiate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                                         const Tile& tile) {
  const auto q = tile.of_queries(forward_.q);
  const auto k = tile.of_keys(kv.k);
  const auto v = tile.of_keys(kv.v);
  const auto grad_out = tile.of_queries(forward_.grad_out);
  const auto scale = static_cast<T>(scoring_.scale);

  // forward: P = e^{s - lse}. A row that sees no key has lse = -inf and P = 0.
  for (Index i = 0; i < p_.rows(); ++i)
    for (Index j = 0; j < p_.cols(); ++j)
      p_(i, j) = rescale(p_(i, j), forward_.lse(tile.batch, tile.head, tile.first_query + i));

  // forward: O = (F * P) V, F the factors of the dropout; so now dV = (F * P)^T dO and dP = F * dO V^T.
  const bool drops = scoring_.dropout.drops();
  if (drops) {
    dropout_tile(scoring_.dropout, tile, factors_);
    const Matrix<T> dropped = factors_.cwiseProduct(p_);
    add_product<T>(tile.of_keys(gradient.v), 1, dropped.transpose(), grad_out);
  } else {
    add_product<T>(tile.of_keys(gradient.v), 1, p_.transpose(), grad_out);
  }
  ds_.setZero(p_.rows(), p_.cols());
  add_product<T>(ds_, 1, grad_out, v.transpose());

  // forward: P = softmax(s), row by row; so now dS = P * (dP - delta). A dropped pair has dP = 0 and dS = -P delta: it
  // takes part in the softmax.
  for (Index i = 0; i < p_.rows(); ++i) {
    const T delta = delta_.view()(tile.batch, tile.head, tile.first_query + i);
    for (Index j = 0; j < p_.cols(); ++j)
      ds_(i, j) = p_(i, j) * ((drops ? factors_(i, j) : T{1}) * ds_(i, j) - delta);
  }
  if (grad_bias_.size() > 0) tile.of_pairs(grad_bias_.view()) += ds_;  // forward: s = ... + bias

  // forward: s = cap tanh(x / cap) + bias of x = scale * q k^T; so now dx = ds * (1 - tanh^2).
  if (scoring_.caps()) {
    capped_products<T>(scoring_, tile, forward_.q, kv.k, p_);
    ds_ = ds_.cwiseProduct(p_.unaryExpr([&](T capped) { return scoring_.slope_of_cap(capped); }));
  }

  // forward: x = scale * q k^T; so now dQ = scale * dS K and dK = scale * dS^T Q.
  add_product<T>(tile.of_queries(grad_q_.view()), scale, ds_, k);
  add_product<T>(tile.of_keys(gradient.k), scale, ds_.transpose(), q);
}

extern template class BlockwiseBackward<float>;
extern template class BlockwiseBackward<double>;

}  // namespace ring_attention
