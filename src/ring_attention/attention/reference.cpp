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

/// exp(-104) is below the smallest float: a pair whose score is so far below the largest of its row has no weight.
constexpr double no_weight = 104;
/// An exp() may give 0 for what is below the smallest normal float. In epsilons of float.
constexpr double lost_weight = 0x1p-103;

/// One head: softmax(capped(scale q k^T) + bias + mask) with its sink, and what it is made of.
struct Softmax {
  Matrix<double> p;  // [rows, keys]; a row that sees no key is zero
  Matrix<double>
      errors;  // [rows, keys]: how far roundings move a score, in epsilons; 0 of a pair without weight; where p > 0
  Matrix<double> slope;  // [rows, keys]: ds / d(scale q.k); empty: 1
  Eigen::VectorXd sink;  // [rows], the probability of the sink
  Eigen::VectorXd lse;   // [rows]
  Eigen::VectorXd
      size;  // [rows]: 1 + the largest |s| with weight of a row, its products, sink and lse included
  double max_abs_score = 0;  // of what has weight
};

/// |x|_4 of each row: by Cauchy and Schwarz the product of two is at least the norm of the products x_d y_d.
Eigen::VectorXd norms_4(View<const double> array, Index batch, Index head) {
  const auto rows = matrix(array, batch, head);
  Eigen::VectorXd norms = rows.rowwise().lpNorm<Eigen::Infinity>();
  for (Index i = 0; i < rows.rows(); ++i)
    if (norms(i) > 0) norms(i) *= std::sqrt((rows.row(i) / norms(i)).array().square().matrix().norm());
  return norms;
}

Eigen::VectorXd norms(View<const double> array, Index batch, Index head) {
  const auto rows = matrix(array, batch, head);
  Eigen::VectorXd norms(rows.rows());
  for (Index i = 0; i < rows.rows(); ++i) norms(i) = rows.row(i).stableNorm();
  return norms;
}

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

/// s of all pairs. s = -inf hides a pair, whether the mask or the bias says so. \param s  the products, capped
Matrix<double> dense_scores(const DenseProblem& problem, Index batch, Index head, Matrix<double> s) {
  const Scoring& scoring = problem.scoring;
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
  Softmax result{products(batch, head), {}, {}, Eigen::VectorXd(rows), Eigen::VectorXd(rows),
                 Eigen::VectorXd(rows)};
  const bool is_product = !scoring.caps() && !scoring.has_alibi() && bias.size() == 0;  // the score
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

/// The rows of one head of result.of_out and of_lse. \param kept  F * p
void find_errors(const DenseProblem& problem, const Softmax& softmax, const Matrix<double>& kept, Index batch,
                 Index head, bool of_inputs, Reference& result) {
  const Index kv = head / problem.group;
  const double biggest = max_abs(problem.v),
               unit = biggest > 0 ? biggest : 1;  // of values: squares of tiny ones are 0
  const Eigen::VectorXd of_query = std::abs(problem.scoring.scale) * norms_4(problem.q, batch, head),
                        of_key = norms_4(problem.k, batch, kv), of_value = norms(problem.v, batch, kv) / unit,
                        of_out = norms(result.out.view(), batch, head) / unit;
  const double sum = 1 + std::sqrt(static_cast<double>(kept.cols())) / 8;  // of the keys, one after the other
  const double scale = problem.scoring.dropout.drops() ? problem.scoring.dropout.scale() : 1;
  const Eigen::VectorXd of_values = kept * of_value;  // sum_j p_j F_j |v_j| of each row
  for (Index i = 0; i < kept.rows(); ++i) {
    const double of_sink = softmax.sink(i) > 0 ? softmax.sink(i) * std::abs(problem.scoring.sink(head)) : 0;
    double out = of_sink * of_out(i), lse = of_sink, inputs = 0, size = 0, inputs_lse = 0;
    const double *const ps = softmax.p.row(i).data(), *const kept_ps = kept.row(i).data(),
                        *const errors = softmax.errors.row(i).data(),
                        *const slopes = softmax.slope.size() > 0 ? softmax.slope.row(i).data() : nullptr;
    for (Index key = 0; key < kept.cols(); ++key) {
      const double p = ps[key];
      if (p == 0) continue;
      const double v = kept_ps[key] > 0 ? scale * of_value(key) : 0, pv = p * v;
      // |v - out| is at most |v| + |out|, and (1 - p) |v| + |out - p v|, of the other keys.
      const double distance = std::min(v + of_out(i), (1 - p) * v + std::max(of_values(i) - pv, 0.0));
      out += p * errors[key] * distance + sum * pv + lost_weight * v;
      lse += p * errors[key];
      size += pv * pv;
      if (!of_inputs) continue;
      const double terms = p * of_query(i) * of_key(key) * (slopes != nullptr ? slopes[key] : 1);
      inputs += terms * distance * (terms * distance);
      inputs_lse += terms;  // K that has a mean is rounded alike in all keys, and q is
    }
    inputs += size;
    result.of_out.roundings.view()(batch, head, i) = unit * out;
    result.of_out.inputs.view()(batch, head, i) = unit * std::sqrt(inputs);
    result.of_out.size.view()(batch, head, i) = unit * std::sqrt(size);
    const double of_lse = std::abs(softmax.lse(i));
    result.of_lse.roundings.view()(batch, head, i) = std::isfinite(of_lse) ? sum + of_lse + lse : 0;
    result.of_lse.inputs.view()(batch, head, i) = inputs_lse;
    result.of_lse.size.view()(batch, head, i) = 1;
  }
}

/// Adds what one head of query gives to result.sizes and result.inputs. \param kept  F * p
void add_squares(const DenseProblem& problem, const Softmax& softmax, const Matrix<double>& kept,
                 const Matrix<double>& ds, View<const double> grad_out, Index batch, Index head,
                 ReferenceGradients& result) {
  const Index kv = head / problem.group;
  const double scale = std::abs(problem.scoring.scale);
  const Eigen::VectorXd q4 = scale * norms_4(problem.q, batch, head), k4 = norms_4(problem.k, batch, kv),
                        dout4 = norms_4(grad_out, batch, head), v4 = norms_4(problem.v, batch, kv),
                        q = norms(problem.q, batch, head), k = norms(problem.k, batch, kv),
                        dout = norms(grad_out, batch, head);
  const auto square = [](double x) { return x * x; };
  Eigen::VectorXd errors(k.size());  // of ds, by relative errors of K and V
  for (Index i = 0; i < ds.rows(); ++i) {
    double of_q = 0, inputs_q = 0, mean_k = 0, delta = 0, lse = 0;
    const auto slope = [&](Index key) { return softmax.slope.size() > 0 ? softmax.slope(i, key) : 1; };
    for (Index key = 0; key < ds.cols(); ++key) {
      if (softmax.p(i, key) == 0) continue;
      const double terms = kept(i, key) * dout4(i) * v4(key), of_product = scale * slope(key),
                   of_score = q4(i) * k4(key) * slope(key);
      of_q += square(terms * of_product * k(key));
      result.sizes.k.view()(batch, kv, key) += square(terms * of_product * q(i));
      result.sizes.v.view()(batch, kv, key) += square(kept(i, key) * dout(i));
      if (result.sizes.bias.size() > 0)
        bias_row(result.sizes.bias.view(), batch, head, i)[key] += square(terms);
      if (result.inputs.q.size() == 0) continue;
      errors(key) = std::abs(ds(i, key)) * (of_score + 1) + terms;
      inputs_q += square(errors(key) * of_product * k(key));
      mean_k += softmax.p(i, key) * of_product * k(key);
      delta += square(errors(key));
      lse += square(softmax.p(i, key) * of_score);
    }
    result.sizes.q.view()(batch, head, i) = of_q;
    if (result.inputs.q.size() == 0) continue;
    result.inputs.q.view()(batch, head, i) = inputs_q + delta * square(mean_k);
    for (Index key = 0; key < ds.cols(); ++key) {
      const double p = softmax.p(i, key);
      if (p == 0) continue;
      const double of_ds = square(errors(key)) + square(p) * delta;
      result.inputs.k.view()(batch, kv, key) += of_ds * square(scale * slope(key) * q(i));
      result.inputs.v.view()(batch, kv, key) +=
          square(kept(i, key) * dout(i)) * (1 + square(q4(i) * k4(key) * slope(key)) + lse);
      if (result.inputs.bias.size() > 0) bias_row(result.inputs.bias.view(), batch, head, i)[key] += of_ds;
    }
  }
}

}  // namespace

Reference reference_forward(View<const double> q, View<const double> k, View<const double> v,
                            const Scoring& scoring, const TokenRanges& rows, View<const double> bias,
                            bool of_inputs) {
  const DenseProblem problem(q, k, v, scoring, rows, bias);
  Reference result{Tensor<double>(q.shape().with_dim(v.shape().dim)), Tensor<double>(q.shape().per_row())};
  result.max_abs_value = max_abs(v) * scoring.dropout.scale();
  result.of_out = RowErrors(q.shape().per_row());
  result.of_lse = RowErrors(q.shape().per_row());
  for (Index b = 0; b < q.shape().batch; ++b)
    for (Index h = 0; h < q.shape().heads; ++h) {
      const Softmax softmax = problem.softmax(b, h);
      const Matrix<double> dropped =
          scoring.dropout.drops() ? problem.dropped(b, h, softmax.p) : Matrix<double>();
      const Matrix<double>& kept = scoring.dropout.drops() ? dropped : softmax.p;
      matrix(result.out.view(), b, h) = kept * matrix(v, b, h / problem.group);
      matrix(result.lse.view(), b, h) = softmax.lse;
      find_errors(problem, softmax, kept, b, h, of_inputs, result);
      result.max_abs_score = std::max(result.max_abs_score, softmax.max_abs_score);
    }
  return result;
}

ReferenceGradients reference_backward(View<const double> q, View<const double> k, View<const double> v,
                                      View<const double> grad_out, const Scoring& scoring,
                                      const TokenRanges& rows, View<const double> bias, bool of_inputs) {
  const DenseProblem problem(q, k, v, scoring, rows, bias);
  require(grad_out.shape() == q.shape().with_dim(v.shape().dim),
          "reference: grad_out has another shape than the result");
  ReferenceGradients result{scoring.zero_gradients(), Tensor<double>(q.shape()), Tensor<double>(k.shape()),
                            Tensor<double>(v.shape()), Tensor<double>(bias.shape())};
  result.roundings_q = Tensor<double>(q.shape().per_row());
  result.roundings_k = Tensor<double>(k.shape().per_row());
  result.roundings_v = Tensor<double>(v.shape().per_row());
  result.roundings_bias = Tensor<double>(bias.shape());
  result.sizes = GradientSquares(q.shape(), k.shape(), bias.shape());
  if (of_inputs) result.inputs = GradientSquares(q.shape(), k.shape(), bias.shape());
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
      const auto by_slope = [&](const Matrix<double>& of_scores) {  // of the products: s = capped(x) + bias
        return scoring.caps() ? Matrix<double>(of_scores.cwiseProduct(softmax.slope)) : of_scores;
      };
      const Matrix<double> dx = by_slope(ds), kept_p = problem.dropped(b, h, p);

      matrix(result.q.view(), b, h) = scoring.scale * dx * matrix(k, b, kv);
      matrix(result.k.view(), b, kv) += scoring.scale * dx.transpose() * matrix(q, b, h);
      matrix(result.v.view(), b, kv) += kept_p.transpose() * dout;
      const Matrix<double> terms = problem.dropped(b, h, dout.cwiseAbs() * values.cwiseAbs().transpose());
      const Matrix<double> roundings = roundings_of(softmax, dp, delta, terms);
      // A slope is wrong by 2 tanh times what its tanh is wrong by, which is at most 1.5 epsilons.
      Matrix<double> roundings_x = by_slope(roundings);
      if (scoring.caps()) roundings_x += 3 * ds.cwiseAbs();
      matrix(result.roundings_q.view(), b, h) =
          std::abs(scoring.scale) * roundings_x * matrix(k, b, kv).rowwise().norm();
      matrix(result.roundings_k.view(), b, kv) +=
          std::abs(scoring.scale) * roundings_x.transpose() * matrix(q, b, h).rowwise().norm();
      matrix(result.roundings_v.view(), b, kv) +=
          problem.dropped(b, h, softmax.size.asDiagonal() * p).transpose() * dout.rowwise().norm();
      add_squares(problem, softmax, kept_p, ds, grad_out, b, h, result);
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
  const double of_scale = 1 + std::abs(scoring.scale);
  result.steps_q = of_scale * (1 + max_abs(k)) + 2 * max_abs_dp * max_abs(k);
  result.steps_k = of_scale * (1 + max_abs(q)) + 2 * max_abs_dp * max_abs(q) * max_abs(mass);
  result.steps_v = 1 + max_abs(grad_out);
  return result;
}

}  // namespace ring_attention
