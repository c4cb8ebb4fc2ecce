#include "ring_attention/attention/dense_softmax.hpp"

#include <algorithm>
#include <cmath>

#include "ring_attention/attention/bias.hpp"
#include "ring_attention/attention/shapes.hpp"
#include "ring_attention/attention/softmax.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::dense {
namespace {

/// exp(-104) is below the smallest float: a pair whose score is so far below the largest of its row has no weight.
constexpr double no_weight = 104;

/// s of all pairs. s = -inf hides a pair, whether the mask or the bias says so. \param s  the products, capped
Matrix<double> dense_scores(const DenseProblem& problem, Index batch, Index head, Matrix<double> s) {
  const Scoring& scoring = problem.scoring;
  for (Index i = 0; i < s.rows(); ++i) {
    const Index query = problem.position[static_cast<std::size_t>(i)];
    for (Index key = 0; key < s.cols(); ++key) {
      if (scoring.adds()) s(i, key) += scoring.added(head, query, key);
      if (problem.bias.size() > 0) s(i, key) += bias_row(problem.bias, batch, head, i)[key];
      if (!scoring.mask.allowed(query, key)) s(i, key) = negative_infinity<double>;
    }
  }
  return s;
}

}  // namespace

Eigen::VectorXd norms_4(View<const double> array, Index batch, Index head) {
  const auto rows = matrix(array, batch, head);
  Eigen::VectorXd norms = rows.rowwise().lpNorm<Eigen::Infinity>();
  for (Index i = 0; i < rows.rows(); ++i)
    if (norms(i) > 0) norms(i) *= std::sqrt((rows.row(i) / norms(i)).array().square().matrix().norm());
  return norms;
}

DenseProblem::DenseProblem(View<const double> queries, View<const double> keys, View<const double> values,
                           const Scoring& how, const TokenRanges& rows, View<const double> dense_bias)
    : q(queries), k(keys), v(values), scoring(how), bias(dense_bias) {
  group = require_attention_shapes(q.shape(), k.shape(), v.shape());
  require_queries(q.shape(), rows, bias.shape());
  require(bias.size() == 0 || bias.shape().dim == k.shape().seq,
          "reference: the bias has a column for each key");
  require(scoring.sinks.empty() || std::ssize(scoring.sinks) == q.shape().heads,
          "reference: one sink per head");
  position = positions(rows);
}

Softmax DenseProblem::softmax(Index batch, Index head) const {
  const double sink = scoring.sink(head);
  const Index rows = q.shape().seq;
  Softmax result{products(batch, head), {}, {}, Eigen::VectorXd(rows), Eigen::VectorXd(rows),
                 Eigen::VectorXd(rows)};
  const bool is_product = !scoring.caps() && !scoring.adds() && bias.size() == 0;  // the score
  if (is_product)
    result.errors.resize(rows, k.shape().seq);
  else
    result.errors = result.p;  // the products, until the errors take their places
  if (scoring.caps()) {
    result.p = result.errors.unaryExpr([&](double product) { return scoring.capped(product); });
    result.slope = result.p.unaryExpr([&](double capped) { return scoring.slope_of_cap(capped); });
  }
  result.p = dense_scores(*this, batch, head, std::move(result.p));
  const Eigen::VectorXd of_query = std::abs(scoring.scale) * norms_4(q, batch, head),
                        of_key = norms_4(k, batch, head / group);
  Matrix<double>& s = result.p;
  for (Index i = 0; i < s.rows(); ++i) {
    const double m = std::max(sink, s.cols() > 0 ? s.row(i).maxCoeff() : sink);
    const double lightest = std::max(m - no_weight, std::numeric_limits<double>::lowest());
    double largest = sink >= lightest ? std::abs(sink) : 0;
    double* const errors = result.errors.row(i).data();
    const double* const of_s = s.row(i).data();
    const double* const slopes = scoring.caps() ? result.slope.row(i).data() : nullptr;
    for (Index key = 0; key < s.cols(); ++key) {
      if (of_s[key] == negative_infinity<double>) continue;  // p = 0: without an error
      const double size = std::abs(of_s[key]), x = is_product ? size : std::abs(errors[key]);
      double terms = of_query(i) * of_key(key), product = x;
      if (slopes != nullptr) {
        const double capped = std::min(x, scoring.softcap);
        terms *= slopes[key];
        product = capped + slopes[key] * x;
      }
      const bool counts = of_s[key] >= lightest;
      errors[key] = counts ? terms + product + size : 0;
      const double most = std::max(std::max(size, terms), slopes != nullptr ? product : 0);
      largest = std::max(largest, counts ? most : 0);
    }
    result.max_abs_score = std::max(result.max_abs_score, largest);
    // Not Eigen's vector exp: it gives 2e-308 for -inf, and then computes with denormal numbers.
    s.row(i) = s.row(i).unaryExpr([m](double of_pair) { return rescale(of_pair, m); });
    const double l = s.row(i).sum() + rescale(sink, m);
    if (l > 0) s.row(i) /= l;
    result.sink(i) = l > 0 ? rescale(sink, m) / l : 0;
    result.lse(i) = m + std::log(l);
    result.size(i) = 1 + std::max(largest, l > 0 ? std::abs(result.lse(i)) : 0);
  }
  return result;
}

Matrix<double> DenseProblem::dropped(Index batch, Index head, Matrix<double> of_pairs) const {
  const Dropout& dropout = scoring.dropout;
  for (Index i = 0; i < of_pairs.rows() && dropout.drops(); ++i) {
    const DropoutRow row = dropout.row(batch, head, position[static_cast<std::size_t>(i)]);
    for (Index key = 0; key < of_pairs.cols(); ++key)
      of_pairs(i, key) *= dropout.keeps(row, key) ? dropout.scale() : 0;
  }
  return of_pairs;
}

}  // namespace ring_attention::dense
