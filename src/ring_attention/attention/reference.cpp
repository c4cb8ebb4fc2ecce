#include "ring_attention/attention/reference.hpp"

#include <cmath>

#include "ring_attention/attention/bias.hpp"
#include "ring_attention/attention/reference_errors.hpp"
#include "ring_attention/attention/softmax.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

using dense::DenseProblem, dense::Softmax;

Reference reference_forward(View<const double> q, View<const double> k, View<const double> v,
                            const Scoring& scoring, const TokenRanges& rows, View<const double> bias,
                            bool of_inputs) {
  const DenseProblem problem(q, k, v, scoring, rows, bias);
  Reference result{Tensor<double>(q.shape().with_dim(v.shape().dim)), Tensor<double>(q.shape().per_row())};
  result.max_abs_value = dense::max_abs(v) * scoring.dropout.scale();
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
  result.magnitude_q = 2 * std::abs(scoring.scale) * max_abs_dp * dense::max_abs(k);
  result.magnitude_k = 2 * std::abs(scoring.scale) * max_abs_dp * dense::max_abs(q) * dense::max_abs(mass);
  result.magnitude_v = dense::max_abs(grad_out) * dense::max_abs(mass);
  if (bias.size() > 0)
    result.magnitude_bias = 2 * max_abs_dp * static_cast<double>(q.shape().batch * q.shape().heads) /
                            static_cast<double>(bias.shape().batch * bias.shape().heads);
  for (double& magnitude : result.magnitudes.sinks) magnitude *= max_abs_dp;
  const double of_scale = 1 + std::abs(scoring.scale);
  result.steps_q = of_scale * (1 + dense::max_abs(k)) + 2 * max_abs_dp * dense::max_abs(k);
  result.steps_k =
      of_scale * (1 + dense::max_abs(q)) + 2 * max_abs_dp * dense::max_abs(q) * dense::max_abs(mass);
  result.steps_v = 1 + dense::max_abs(grad_out);
  return result;
}

}  // namespace ring_attention
