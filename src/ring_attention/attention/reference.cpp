#include "ring_attention/attention/reference.hpp"

#include <cmath>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/attention/softmax.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

namespace {

double max_abs(View<const double> array) {
  double most = 0;
  for (const double x : array.elements()) most = std::max(most, std::abs(x));
  return most;
}

/// One head: softmax(scale q k^T + bias + mask) and what it is made of.
struct Softmax {
  Matrix<double> p;          // [rows, keys]; a row that sees no key is zero
  Eigen::VectorXd lse;       // [rows]
  double max_abs_score = 0;  // of the unmasked pairs
};

Softmax dense_softmax(const MatrixMap<const double>& q, const MatrixMap<const double>& k,
                      const Scoring& scoring, Index head, const std::vector<Index>& position) {
  Softmax result{scoring.scale * q * k.transpose(), Eigen::VectorXd(q.rows())};
  Matrix<double>& s = result.p;
  for (Index i = 0; i < s.rows(); ++i) {
    const Index query = position[static_cast<std::size_t>(i)];
    for (Index key = 0; key < s.cols(); ++key) {
      if (scoring.has_bias()) s(i, key) += scoring.bias(head, query, key);
      if (scoring.mask.allowed(query, key))
        result.max_abs_score = std::max(result.max_abs_score, std::abs(s(i, key)));
      else
        s(i, key) = negative_infinity<double>;
    }
    const double m = s.cols() > 0 ? s.row(i).maxCoeff() : negative_infinity<double>;
    // Not Eigen's vector exp: it gives 2e-308 for -inf, and then computes with denormal numbers.
    s.row(i) = s.row(i).unaryExpr([m](double score) { return rescale(score, m); });
    const double l = s.row(i).sum();
    if (l > 0) s.row(i) /= l;
    result.lse(i) = m + std::log(l);
  }
  return result;
}

}  // namespace

Reference reference_forward(View<const double> q, View<const double> k, View<const double> v,
                            const Scoring& scoring, const TokenRanges& rows) {
  const Index group = require_attention_shapes(q.shape(), k.shape(), v.shape());
  require(count(rows) == q.shape().seq, "reference: q has other rows than `rows` says");
  const std::vector<Index> position = positions(rows);
  Reference result{Tensor<double>(q.shape()), Tensor<double>(q.shape().per_row())};
  result.max_abs_value = max_abs(v);
  for (Index b = 0; b < q.shape().batch; ++b)
    for (Index h = 0; h < q.shape().heads; ++h) {
      const Softmax softmax = dense_softmax(matrix(q, b, h), matrix(k, b, h / group), scoring, h, position);
      matrix(result.out.view(), b, h) = softmax.p * matrix(v, b, h / group);
      matrix(result.lse.view(), b, h) = softmax.lse;
      result.max_abs_score = std::max(result.max_abs_score, softmax.max_abs_score);
    }
  return result;
}

ReferenceGradients reference_backward(View<const double> q, View<const double> k, View<const double> v,
                                      View<const double> grad_out, const Scoring& scoring,
                                      const TokenRanges& rows) {
  const Index group = require_attention_shapes(q.shape(), k.shape(), v.shape());
  require(count(rows) == q.shape().seq, "reference: q has other rows than `rows` says");
  require(grad_out.shape() == q.shape(), "reference: grad_out has another shape than q");
  const std::vector<Index> position = positions(rows);
  ReferenceGradients result{Tensor<double>(q.shape()), Tensor<double>(k.shape()), Tensor<double>(v.shape())};
  double max_abs_dp = 0;
  Tensor<double> mass(
      {k.shape().batch, k.shape().heads, k.shape().seq, 1});  // sum of P over the rows of a group
  for (Index b = 0; b < q.shape().batch; ++b)
    for (Index h = 0; h < q.shape().heads; ++h) {
      const Index kv = h / group;
      const Softmax softmax = dense_softmax(matrix(q, b, h), matrix(k, b, kv), scoring, h, position);
      const Matrix<double>& p = softmax.p;                                              // [rows, keys]
      const Matrix<double> dp = matrix(grad_out, b, h) * matrix(v, b, kv).transpose();  // dO V^T
      const Eigen::VectorXd delta = p.cwiseProduct(dp).rowwise().sum();
      const Matrix<double> ds = p.cwiseProduct(dp.colwise() - delta);

      matrix(result.q.view(), b, h) = scoring.scale * ds * matrix(k, b, kv);
      matrix(result.k.view(), b, kv) += scoring.scale * ds.transpose() * matrix(q, b, h);
      matrix(result.v.view(), b, kv) += p.transpose() * matrix(grad_out, b, h);

      matrix(mass.view(), b, kv) += p.colwise().sum().transpose();
      if (dp.size() > 0) max_abs_dp = std::max(max_abs_dp, dp.cwiseAbs().maxCoeff());
      result.max_abs_score = std::max(result.max_abs_score, softmax.max_abs_score);
    }
  result.magnitude_q = 2 * std::abs(scoring.scale) * max_abs_dp * max_abs(k);
  result.magnitude_k = 2 * std::abs(scoring.scale) * max_abs_dp * max_abs(q) * max_abs(mass);
  result.magnitude_v = max_abs(grad_out) * max_abs(mass);
  return result;
}

}  // namespace ring_attention
