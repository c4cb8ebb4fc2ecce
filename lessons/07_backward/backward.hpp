/// \file
/// Lesson 07, the idea: the gradients tile by tile, from q, k, v and two numbers a row (lse and delta). The S x S
/// matrix P is never stored.
#pragma once

#include "ring_attention/attention/softmax.hpp"  // lesson 02: rescale, e^{from - to}, and 0 from -inf
#include "ring_attention/core/eigen.hpp"         // Matrix, MatrixMap

namespace ring_attention::lesson {

/// What a mutant replaces.
struct Mistakes {
  bool missing_scale = false;  // dK without the scale
  bool no_delta = false;       // dS = P * dP: the softmax differentiated as if its sum were a constant
  bool tile_lse = false;       // P from the lse of the tile, not of the row
};

struct HeadGradients {
  Matrix<double> q, k, v;
};

/// One head: q, out, grad_out [S, D], k, v [S, D], lse [S]. Key j is visible to query i when j <= i.
inline HeadGradients backward_by_hand(const MatrixMap<const double>& q, const MatrixMap<const double>& k,
                                      const MatrixMap<const double>& v, const MatrixMap<const double>& out,
                                      const MatrixMap<const double>& grad_out, const double* lse,
                                      double scale, Index block, const Mistakes& mistakes = {}) {
  const Index seq = q.rows();
  const Matrix<double> zero = Matrix<double>::Zero(seq, q.cols());
  HeadGradients d{zero, zero, zero};
  Matrix<double> p, ds;
  Vector<double> delta;
  for (Index i0 = 0; i0 < seq; i0 += block) {
    const Index rows = std::min(block, seq - i0);
    delta.setZero(rows);  // one number a row
    for (Index i = 0; i < rows && !mistakes.no_delta; ++i) {
      // delta = dO . O
      for (Index c = 0; c < out.cols(); ++c) delta[i] += grad_out(i0 + i, c) * out(i0 + i, c);
    }

    for (Index j0 = 0; j0 < i0 + rows; j0 += block) {  // tiles above the diagonal have P = 0
      const Index keys = std::min(block, seq - j0);

      // forward: s = scale * q k^T and P; both are computed again.
      p.noalias() = q.middleRows(i0, rows) * k.middleRows(j0, keys).transpose();
      p *= scale;
      for (Index i = 0; i < rows; ++i) {
        for (Index j = 0; j < keys; ++j)
          if (j0 + j > i0 + i) p(i, j) = negative_infinity<double>;
        const auto row_lse = mistakes.tile_lse ? std::log(p.row(i).array().exp().sum()) : lse[i0 + i];
        for (Index j = 0; j < keys; ++j) p(i, j) = rescale(p(i, j), row_lse);
      }

      // forward: O = P V
      // So now dV = P^T dO and dP = dO V^T.
      d.v.middleRows(j0, keys).noalias() += p.transpose() * grad_out.middleRows(i0, rows);
      ds.noalias() = grad_out.middleRows(i0, rows) * v.middleRows(j0, keys).transpose();

      // forward: P = softmax(s), row by row
      for (Index i = 0; i < rows; ++i) {
        // So now dS = P * (dP - delta).
        for (Index j = 0; j < keys; ++j) ds(i, j) = p(i, j) * (ds(i, j) - delta[i]);
      }

      // forward: s = scale * q k^T
      // So now dQ = scale * dS K and dK = scale * dS^T Q.
      d.q.middleRows(i0, rows).noalias() += scale * ds * k.middleRows(j0, keys);
      const double key_scale = mistakes.missing_scale ? 1.0 : scale;
      d.k.middleRows(j0, keys).noalias() += key_scale * ds.transpose() * q.middleRows(i0, rows);
    }
  }
  return d;
}

}  // namespace ring_attention::lesson
