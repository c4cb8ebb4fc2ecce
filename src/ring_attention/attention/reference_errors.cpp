#include "ring_attention/attention/reference_errors.hpp"

#include <cmath>

#include "ring_attention/attention/bias.hpp"

namespace ring_attention::dense {

namespace {

/// An exp() may give 0 for what is below the smallest normal float. In epsilons of float.
constexpr double lost_weight = 0x1p-103;

}  // namespace

double max_abs(View<const double> array) {
  double most = 0;
  for (const double x : array.elements()) most = std::max(most, std::abs(x));
  return most;
}

Eigen::VectorXd norms(View<const double> array, Index batch, Index head) {
  const auto rows = matrix(array, batch, head);
  Eigen::VectorXd norms(rows.rows());
  for (Index i = 0; i < rows.rows(); ++i) norms(i) = rows.row(i).stableNorm();
  return norms;
}

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

Matrix<double> roundings_of(const Softmax& softmax, const Matrix<double>& dp, const Eigen::VectorXd& delta,
                            const Matrix<double>& terms) {
  const Matrix<double> difference = (dp.colwise() - delta).cwiseAbs();
  const Eigen::VectorXd spread =
      softmax.p.cwiseProduct(difference).rowwise().sum() + softmax.sink.cwiseProduct(delta.cwiseAbs());
  const Eigen::VectorXd of_row =
      softmax.size.cwiseProduct(spread) + softmax.p.cwiseProduct(terms).rowwise().sum();
  return softmax.p.cwiseProduct(((softmax.size.asDiagonal() * difference + terms).colwise() + of_row).eval());
}

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

}  // namespace ring_attention::dense
