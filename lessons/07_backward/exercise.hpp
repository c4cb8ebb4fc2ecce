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
    delta.setZero(rows);  // one number a row: dO . O
    for (Index i = 0; i < rows && !mistakes.no_delta; ++i) {
      // Exercise: delta[i] of row i0 + i, the sum over its columns c of dO * O. It is 0 before. Add in a loop,
      // from the first to the last column: dot() of Eigen adds in another order, and does not give the
      // library's bits.
      still_empty("delta");
    }

    for (Index j0 = 0; j0 < i0 + rows; j0 += block) {  // tiles above the diagonal have P = 0
      const Index keys = std::min(block, seq - j0);

      // forward: s = scale * q k^T and P = e^{s - lse}; both are computed again.
      p.noalias() = q.middleRows(i0, rows) * k.middleRows(j0, keys).transpose();
      p *= scale;
      for (Index i = 0; i < rows; ++i) {
        for (Index j = 0; j < keys; ++j)
          if (j0 + j > i0 + i) p(i, j) = negative_infinity<double>;
        const auto row_lse = mistakes.tile_lse ? std::log(p.row(i).array().exp().sum()) : lse[i0 + i];
        // Exercise: the scores p(i, 0), p(i, 1), ... of this row become P = e^{s - row_lse}. rescale(a, b) is
        // e^{a - b}, and 0 for a = -inf.
        still_empty("P");
      }
      // forward: O = P V; so now dV = P^T dO and dP = dO V^T.
      // Exercise: add to the rows of dV that this tile has, d.v.middleRows(j0, keys), and set `ds` to dP. The
      // rows of dO are grad_out.middleRows(i0, rows), those of V v.middleRows(j0, keys). For the library's
      // bits write x.noalias() before = and +=.
      still_empty("dV and dP");

      // forward: P = softmax(s), row by row; so now dS = P * (dP - delta).
      for (Index i = 0; i < rows; ++i) {
        // Exercise: row i of `ds`, which holds dP, becomes dS.
        still_empty("dS");
      }

      // forward: s = scale * q k^T; so now dQ = scale * dS K and dK = scale * dS^T Q.
      // Exercise: add to the rows of dQ, d.q.middleRows(i0, rows), and of dK, with noalias() as above. The scale
      // comes first in the product.
      still_empty("dQ and dK");
    }
  }
  return d;
}

}  // namespace ring_attention::lesson
