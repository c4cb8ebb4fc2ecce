// Lesson 13, beside the idea: what a layer does to each token by itself. No message, no other token.
#pragma once

#include "model/heads.hpp"
#include "model/layer.hpp"
#include "model/rms_norm.hpp"
#include "ring_attention/core/eigen.hpp"

namespace ring_attention::lesson {

using Rows = Matrix<double>;  // a row for each token of this rank

inline View<const double> view(const Rows& x) { return {x.data(), {1, 1, x.rows(), x.cols()}}; }
inline View<double> view(Rows& x) { return {x.data(), {1, 1, x.rows(), x.cols()}}; }

/// A weight, or its gradient, as a matrix: no copy.
template <class T>
MatrixMap<T> matrix(const View<T>& weight) {
  return ring_attention::matrix(weight, 0, 0);
}

/// a b; each is a matrix in memory or the transpose of one.
inline Rows product(const Factor<double>& a, const Factor<double>& b) {
  Rows c = Rows::Zero(a.rows, b.columns);
  add_product<double>(c, 1, a, b);
  return c;
}

/// Between `[tokens, heads * dim]` and `[1, heads, tokens, dim]`.
inline Tensor<double> heads_of(const Rows& x, Index dim) {
  return model::split_heads<double>(view(x), x.cols() / dim);
}
inline Rows rows_of(const Tensor<double>& heads) {
  const Tensor<double> joined = model::join_heads<double>(heads);
  return matrix(joined.view());
}

/// RMSNorm of each row.
inline Rows normed(const Rows& x, View<const double> gain) {
  Rows n(x.rows(), x.cols());
  model::rms_norm<double>(view(x), gain, view(n));
  return n;
}
/// forward: n = normed(x, gain); so now, from dn, the gradient of x, and that of the gain, which is added to.
inline Rows norm_gradient(const Rows& x, View<const double> gain, const Rows& dn, View<double> grad_gain) {
  Rows dx = Rows::Zero(x.rows(), x.cols());
  model::add_rms_norm_gradient<double>(view(x), gain, view(dn), view(dx), grad_gain);
  return dx;
}

/// q, k and v of this rank's heads and tokens, of n = norm(x), turned by the positions of the tokens.
struct Projections {
  Projections(const model::ModelShape& of, const TokenRanges& positions,
              const model::LayerParameters<const double>& w, const Rows& x)
      : n(normed(x, w.norm_1)),
        shape(of),
        tokens(positions),
        q(heads_of(product(n, matrix(w.wq)), shape.dim)),
        k(heads_of(product(n, matrix(w.wk)), shape.dim)),
        v(heads_of(product(n, matrix(w.wv)), shape.dim)) {
    turn(q, 1);
    turn(k, 1);
  }

  /// forward: q = n wq, k = n wk, v = n wv; so now dw += n^T d, and dn = dq wq^T + dk wk^T + dv wv^T.
  [[nodiscard]] Rows backward(Gradients<double> d, const model::LayerParameters<const double>& w,
                              const model::LayerParameters<double>& gradients) const {
    turn(d.q, -1);
    turn(d.k, -1);
    const Rows dq = rows_of(d.q), dk = rows_of(d.k), dv = rows_of(d.v);
    matrix(gradients.wq) += product(n.transpose(), dq);
    matrix(gradients.wk) += product(n.transpose(), dk);
    matrix(gradients.wv) += product(n.transpose(), dv);
    return product(dq, matrix(w.wq).transpose()) + product(dk, matrix(w.wk).transpose()) +
           product(dv, matrix(w.wv).transpose());
  }

  Rows n;
  const model::ModelShape& shape;
  const TokenRanges& tokens;
  Tensor<double> q, k, v;

 private:
  void turn(Tensor<double>& heads, int sign) const {
    model::rotate<double>(heads, tokens, shape.rotary, shape.theta, sign);
  }
};

/// The feed-forward part's hidden numbers of some tokens, of n = norm(y).
struct Hidden {
  Hidden(const model::LayerParameters<const double>& w, const Rows& y)
      : n(normed(y, w.norm_2)), h(product(n, matrix(w.w1)).cwiseMax(0)) {}
  Rows n, h;
};

}  // namespace ring_attention::lesson
