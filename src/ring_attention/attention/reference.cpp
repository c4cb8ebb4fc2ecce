#include "ring_attention/attention/reference.hpp"

#include <cmath>

#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

Index require_attention_shapes(const Shape& q, const Shape& k, const Shape& v) {
  const std::string shapes = "q " + to_string(q) + ", k " + to_string(k) + ", v " + to_string(v);
  require(k == v, "k and v differ in shape: " + shapes);
  require(q.batch == k.batch && q.dim == k.dim, "q and k differ in batch or dim: " + shapes);
  require(k.heads > 0 && q.heads % k.heads == 0, "the KV heads must divide the query heads: " + shapes);
  return q.heads / k.heads;
}

Reference reference_forward(View<const double> q, View<const double> k, View<const double> v,
                            const Scoring& scoring, const Runs& rows) {
  const Index group = require_attention_shapes(q.shape(), k.shape(), v.shape());
  const std::vector<Index> position = positions(rows);
  require(static_cast<Index>(position.size()) == q.shape().seq,
          "reference: q has other rows than `rows` says");

  Reference result{Tensor<double>(q.shape()), Tensor<double>(q.shape().per_row(), negative_infinity<double>)};
  for (const double x : v.elements()) result.max_abs_value = std::max(result.max_abs_value, std::abs(x));

  for (Index b = 0; b < q.shape().batch; ++b) {
    for (Index h = 0; h < q.shape().heads; ++h) {
      const auto keys = matrix(k, b, h / group);
      const auto values = matrix(v, b, h / group);
      auto out = matrix(result.out.view(), b, h);

      Matrix<double> s = scoring.scale * matrix(q, b, h) * keys.transpose();  // [rows, keys]
      for (Index i = 0; i < s.rows(); ++i) {
        for (Index j = 0; j < s.cols(); ++j) {
          if (scoring.mask.allowed(position[static_cast<std::size_t>(i)], j))
            result.max_abs_score = std::max(result.max_abs_score, std::abs(s(i, j)));
          else
            s(i, j) = negative_infinity<double>;
        }
        const double m = s.cols() > 0 ? s.row(i).maxCoeff() : negative_infinity<double>;
        if (m == negative_infinity<double>) continue;  // sees no key: out = 0, lse = -inf
        // Not Eigen's vector exp: it gives 2e-308 for -inf, and then computes with denormal numbers.
        const Eigen::RowVectorXd p = s.row(i).unaryExpr([m](double score) { return rescale(score, m); });
        out.row(i) = p * values / p.sum();
        result.lse.view()(b, h, i) = m + std::log(p.sum());
      }
    }
  }
  return result;
}

}  // namespace ring_attention
