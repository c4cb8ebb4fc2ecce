#include "ring_attention/attention/reference.hpp"

#include <cmath>

#include "ring_attention/attention/bias.hpp"
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

/// One head: softmax(capped(scale q k^T) + bias + mask) with its sink, and what it is made of.
struct Softmax {
  Matrix<double> p;          // [rows, keys]; a row that sees no key is zero
  Eigen::VectorXd sink;      // [rows], the probability of the sink
  Eigen::VectorXd lse;       // [rows]
  Eigen::VectorXd size;      // [rows]: 1 + the largest |s| of a row, its products, sink and lse included
  double max_abs_score = 0;  // of the pairs that are seen, and the sink
};

/// The arguments of both references.
struct DenseProblem {
  View<const double> q, k, v;
  const Scoring& scoring;
  View<const double> bias;
  Index group;                  // query heads that share a KV head
  std::vector<Index> position;  // of each row

  DenseProblem(View<const double> queries, View<const double> keys, View<const double> values,
               const Scoring& how, const TokenRanges& rows, View<const double> dense_bias)
      : q(queries), k(keys), v(values), scoring(how), bias(dense_bias) {
    group = require_attention_shapes(q.shape(), k.shape(), v.shape());
    require(count(rows) == q.shape().seq, "reference: q and `rows` have different numbers of rows");
    require_bias_shape(bias.shape(), q.shape());
    require(bias.size() == 0 || bias.shape().dim == k.shape().seq,
            "reference: the bias has a column for each key");
    require(scoring.sinks.empty() || std::ssize(scoring.sinks) == q.shape().heads,
            "reference: one sink per head");
    position = positions(rows);
  }

  /// scale * q k^T, [rows, keys].
  [[nodiscard]] Matrix<double> products(Index batch, Index head) const {
    return scoring.scale * matrix(q, batch, head) * matrix(k, batch, head / group).transpose();
  }
  [[nodiscard]] Softmax softmax(Index batch, Index head) const;
  /// Multiplies a number a pair, [rows, keys], by the factors of the dropout.
  [[nodiscard]] Matrix<double> dropped(Index batch, Index head, Matrix<double> of_pairs) const;
};

/// s = -inf hides a pair, whether the mask or the bias says so.
Matrix<double> dense_scores(const DenseProblem& problem, Index batch, Index head) {
  const Scoring& scoring = problem.scoring;
  Matrix<double> s =
      problem.products(batch, head).unaryExpr([&](double product) { return scoring.capped(product); });
  for (Index i = 0; i < s.rows(); ++i) {
    const Index query = problem.position[static_cast<std::size_t>(i)];
    for (Index key = 0; key < s.cols(); ++key) {
      if (scoring.has_alibi()) s(i, key) += scoring.alibi(head, query, key);
      if (problem.bias.size() > 0) s(i, key) += bias_row(problem.bias, batch, head, i)[key];
      if (!scoring.mask.allowed(query, key)) s(i, key) = negative_infinity<double>;
    }
  }
  return s;
}

Softmax DenseProblem::softmax(Index batch, Index head) const {
  const double sink = scoring.sink(head);
  const Index rows = q.shape().seq;
  Softmax result{dense_scores(*this, batch, head), Eigen::VectorXd(rows), Eigen::VectorXd(rows),
                 Eigen::VectorXd(rows)};
  const double of_sink = sink == negative_infinity<double> ? 0 : std::abs(sink);
  Matrix<double>& s = result.p;
  // A cap makes large products small, but not the roundings of their sums.
  const Matrix<double> uncapped = scoring.caps() ? products(batch, head) : Matrix<double>();
  for (Index i = 0; i < s.rows(); ++i) {
    double largest = of_sink;
    for (Index key = 0; key < s.cols(); ++key)
      if (s(i, key) != negative_infinity<double>)
        largest = std::max({largest, std::abs(s(i, key)), scoring.caps() ? std::abs(uncapped(i, key)) : 0});
    result.max_abs_score = std::max(result.max_abs_score, largest);
    const double m = std::max(sink, s.cols() > 0 ? s.row(i).maxCoeff() : sink);
    // Not Eigen's vector exp: it gives 2e-308 for -inf, and then computes with denormal numbers.
    s.row(i) = s.row(i).unaryExpr([m](double score) { return rescale(score, m); });
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

/// How far roundings move ds, in epsilons: p and what it weighs by the size of the scores, dp and delta by their terms,
/// which do not cancel. A delta is wrong in the same way for a whole row.
/// \param terms  F * |dO| |V|^T
Matrix<double> roundings_of(const Softmax& softmax, const Matrix<double>& dp, const Eigen::VectorXd& delta,
                            const Matrix<double>& terms) {
  const Matrix<double> difference = (dp.colwise() - delta).cwiseAbs();
  const Eigen::VectorXd spread =
      softmax.p.cwiseProduct(difference).rowwise().sum() + softmax.sink.cwiseProduct(delta.cwiseAbs());
  const Eigen::VectorXd of_row =
      softmax.size.cwiseProduct(spread) + softmax.p.cwiseProduct(terms).rowwise().sum();
  return softmax.p.cwiseProduct(((softmax.size.asDiagonal() * difference + terms).colwise() + of_row).eval());
}

}  // namespace

Reference reference_forward(View<const double> q, View<const double> k, View<const double> v,
                            const Scoring& scoring, const TokenRanges& rows, View<const double> bias) {
  const DenseProblem problem(q, k, v, scoring, rows, bias);
  Reference result{Tensor<double>(q.shape().with_dim(v.shape().dim)), Tensor<double>(q.shape().per_row())};
  result.max_abs_value = max_abs(v) * scoring.dropout.scale();
  for (Index b = 0; b < q.shape().batch; ++b)
    for (Index h = 0; h < q.shape().heads; ++h) {
      Softmax softmax = problem.softmax(b, h);
      matrix(result.out.view(), b, h) =
          problem.dropped(b, h, std::move(softmax.p)) * matrix(v, b, h / problem.group);
      matrix(result.lse.view(), b, h) = softmax.lse;
      result.max_abs_score = std::max(result.max_abs_score, softmax.max_abs_score);
    }
  return result;
}

ReferenceGradients reference_backward(View<const double> q, View<const double> k, View<const double> v,
                                      View<const double> grad_out, const Scoring& scoring,
                                      const TokenRanges& rows, View<const double> bias) {
  const DenseProblem problem(q, k, v, scoring, rows, bias);
  require(grad_out.shape() == q.shape().with_dim(v.shape().dim),
          "reference: grad_out has another shape than the result");
  ReferenceGradients result{scoring.zero_gradients(), Tensor<double>(q.shape()), Tensor<double>(k.shape()),
                            Tensor<double>(v.shape()), Tensor<double>(bias.shape())};
  result.roundings_q = Tensor<double>(q.shape().per_row());
  result.roundings_k = Tensor<double>(k.shape().per_row());
  result.roundings_v = Tensor<double>(v.shape().per_row());
  result.roundings_bias = Tensor<double>(bias.shape());
  result.magnitudes = scoring.zero_gradients();
  const double kept = scoring.dropout.scale();
  double max_abs_dp = 0;  // of |dO| |V|^T, which does not cancel: rounding errors do not either
  Tensor<double> mass(
      {k.shape().batch, k.shape().heads, k.shape().seq, 1});  // sum of P over the rows of a group
  for (Index b = 0; b < q.shape().batch; ++b)
    for (Index h = 0; h < q.shape().heads; ++h) {
      const Index kv = h / problem.group;
      const Softmax softmax = problem.softmax(b, h);
      const Matrix<double>& p = softmax.p;  // [rows, keys]
      const auto dout = matrix(grad_out, b, h);
      const auto values = matrix(v, b, kv);
      const Matrix<double> dp = problem.dropped(b, h, dout * values.transpose());  // F * dO V^T
      const Eigen::VectorXd delta = p.cwiseProduct(dp).rowwise().sum();
      const Matrix<double> ds = p.cwiseProduct(dp.colwise() - delta);
      // The score is capped(x) + bias of x = scale * q.k: dx = ds * slope.
      const Matrix<double> slope = problem.products(b, h).unaryExpr(
          [&](double product) { return scoring.slope_of_cap(scoring.capped(product)); });
      const Matrix<double> dx = ds.cwiseProduct(slope);

      matrix(result.q.view(), b, h) = scoring.scale * dx * matrix(k, b, kv);
      matrix(result.k.view(), b, kv) += scoring.scale * dx.transpose() * matrix(q, b, h);
      matrix(result.v.view(), b, kv) += problem.dropped(b, h, p).transpose() * dout;
      const Matrix<double> terms = problem.dropped(b, h, dout.cwiseAbs() * values.cwiseAbs().transpose());
      const Matrix<double> roundings = roundings_of(softmax, dp, delta, terms);
      // A slope is wrong by 2 tanh times what its tanh is wrong by, which is at most 1.5 epsilons.
      Matrix<double> roundings_x = roundings.cwiseProduct(slope);
      if (scoring.caps()) roundings_x += 3 * ds.cwiseAbs();
      matrix(result.roundings_q.view(), b, h) =
          std::abs(scoring.scale) * roundings_x * matrix(k, b, kv).rowwise().norm();
      matrix(result.roundings_k.view(), b, kv) +=
          std::abs(scoring.scale) * roundings_x.transpose() * matrix(q, b, h).rowwise().norm();
      matrix(result.roundings_v.view(), b, kv) +=
          problem.dropped(b, h, softmax.size.asDiagonal() * p).transpose() * dout.rowwise().norm();
      for (Index i = 0; i < ds.rows() && bias.size() > 0; ++i)
        for (Index key = 0; key < ds.cols(); ++key) {
          bias_row(result.bias.view(), b, h, i)[key] += ds(i, key);
          bias_row(result.roundings_bias.view(), b, h, i)[key] += roundings(i, key);
        }
      if (!result.sinks.empty()) {
        const auto head = static_cast<std::size_t>(h);
        result.sinks[head] -= softmax.sink.dot(delta);
        result.magnitudes.sinks[head] += softmax.sink.sum();
      }

      matrix(mass.view(), b, kv) += kept * p.colwise().sum().transpose();
      if (dp.size() > 0)
        max_abs_dp =
            std::max(max_abs_dp, kept * (dout.cwiseAbs() * values.cwiseAbs().transpose()).maxCoeff());
      result.max_abs_score = std::max(result.max_abs_score, softmax.max_abs_score);
    }
  result.magnitude_q = 2 * std::abs(scoring.scale) * max_abs_dp * max_abs(k);
  result.magnitude_k = 2 * std::abs(scoring.scale) * max_abs_dp * max_abs(q) * max_abs(mass);
  result.magnitude_v = max_abs(grad_out) * max_abs(mass);
  if (bias.size() > 0)
    result.magnitude_bias = 2 * max_abs_dp * static_cast<double>(q.shape().batch * q.shape().heads) /
                            static_cast<double>(bias.shape().batch * bias.shape().heads);
  for (double& magnitude : result.magnitudes.sinks) magnitude *= max_abs_dp;
  return result;
}

}  // namespace ring_attention
