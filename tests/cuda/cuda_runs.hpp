// A problem on a GPU: numbers rounded to its type, runs of the engines, and the check against the reference.
#pragma once

#include "ring_attention/cuda/device.hpp"
#include "ring_attention/cuda/engine.hpp"
#include "ring_attention/cuda/stream.hpp"
#include "support/gradient_bound.hpp"

namespace ring_attention::test {

using cuda::StreamHandle;

template <class T>
constexpr double unit_of = cuda::unit_roundoff(cuda::type_of<T>);

/// The elements of `array` rounded to T, as float.
template <class T>
Tensor<float> rounded(const Tensor<float>& array, StreamHandle stream) {
  return cuda::downloaded(cuda::uploaded<T>(array, stream), stream);
}

/// A problem whose arrays are numbers of T, so that kernel and reference have the same inputs.
template <class T>
Problem<float> forward_problem_in(const Case& what, StreamHandle stream) {
  const auto [q, k, v] = random_inputs<float>(what);
  return make_problem<float>(what, rounded<T>(q, stream), rounded<T>(k, stream), rounded<T>(v, stream),
                             random_bias<float>(what));
}
template <class T>
GradientProblem<float> problem_in(const Case& what, StreamHandle stream) {
  return make_gradient_problem(forward_problem_in<T>(what, stream),
                               rounded<T>(random_grad_out<float>(what), stream));
}

inline AttentionResult<float> downloaded(const AttentionResult<float>& device, StreamHandle stream) {
  return {cuda::downloaded(device.out, stream), cuda::downloaded(device.lse, stream)};
}

/// The bias of the queries `rows` on the device, or an empty array.
inline cuda::DeviceTensor<float> bias_of(const Problem<float>& problem, const TokenRanges& rows,
                                         StreamHandle stream) {
  if (problem.bias.size() == 0) return {};
  return cuda::uploaded<float>(rows_of(problem.bias, rows), stream);
}

/// out and lse of the queries `rows`, with the keys in pieces, in the given order.
template <class T>
AttentionResult<float> forward_in_pieces(const Problem<float>& problem,
                                         const std::vector<TokenRanges>& pieces, const CudaOptions& options,
                                         const TokenRanges& rows) {
  CudaEngine<T> engine(problem.what.scoring, options);
  const auto q = cuda::uploaded<T>(rows_of(problem.q, rows), options.stream);
  const auto bias = bias_of(problem, rows, options.stream);
  engine.begin(q, rows, bias);
  for (const TokenRanges& piece : pieces) {
    const auto k = cuda::uploaded<T>(rows_of(problem.k, piece), options.stream);
    const auto v = cuda::uploaded<T>(rows_of(problem.v, piece), options.stream);
    engine.accumulate({k, v, piece});
  }
  return downloaded(engine.finish(), options.stream);
}

/// dQ, dK, dV and dBias from the reference's out and lse, with the keys in pieces.
template <class T>
Gradients<float> backward_in_pieces(const GradientProblem<float>& problem,
                                    const std::vector<TokenRanges>& pieces, const CudaOptions& options) {
  const Problem<float>& p = problem.forward;
  const StreamHandle stream = options.stream;
  const auto q = cuda::uploaded<T>(p.q, stream), grad_out = cuda::uploaded<T>(problem.grad_out, stream);
  const auto out = cuda::uploaded<float>(converted<float>(p.want.out), stream);
  const auto lse = cuda::uploaded<float>(converted<float>(p.want.lse), stream);
  CudaBackward<T> engine(p.what.scoring, options);
  const auto bias = bias_of(p, whole(p.what.queries), stream);
  engine.begin({q, out, lse, grad_out, bias}, whole(p.what.queries));
  Gradients<float> all{{}, Tensor<float>(p.what.kv()), Tensor<float>(p.what.kv())};
  for (const TokenRanges& piece : pieces) {
    const auto k = cuda::uploaded<T>(rows_of(p.k, piece), stream),
               v = cuda::uploaded<T>(rows_of(p.v, piece), stream);
    cuda::DeviceTensor<float> dk(k.shape()), dv(k.shape());
    engine.accumulate({k, v, piece}, {dk, dv});
    put_rows(all.k, cuda::downloaded(dk, stream), piece);
    put_rows(all.v, cuda::downloaded(dv, stream), piece);
  }
  all.q = cuda::downloaded(engine.finish(), stream);
  all.bias = cuda::downloaded(engine.term_gradients().bias, stream);
  return all;
}

/// Compares out and lse of these rows with the reference, with a tolerance for T.
/// \param unit  unit roundoff of T, to which the kernel rounds p. The largest p is exactly 1, and the errors of the
///   others have both signs: three quarters of a unit at most
inline testing::AssertionResult agrees_in(double unit, const AttentionResult<float>& got,
                                          const Problem<float>& problem, const TokenRanges& rows) {
  const Reference& want = problem.want;
  const Index keys = problem.what.keys;
  const Tensor<double> lse = rows_of(want.lse, rows);
  const bool nothing = lse.size() > 0 && all_fully_masked(lse, problem.what.scoring);
  Tolerance tolerance = attention_tolerance<float>(keys, want.max_abs_score, want.max_abs_value);
  const Comparison statistic = compare(got.lse, lse, tolerance, {.allow_negative_infinity = true});
  tolerance.absolute += 0.75 * unit * want.max_abs_value;  // p is rounded, scores are not
  const Comparison out = compare(got.out, rows_of(want.out, rows), tolerance, {.expect_zero = nothing});
  if (out.ok && statistic.ok) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "out " << describe(out) << "\n  lse " << describe(statistic) << "\n  "
                                     << to_string(problem.what);
}

/// Compares dQ, dK, dV and dBias with the reference (gradient_is_near).
/// \param unit  unit roundoff of T, to which the kernel rounds p and ds
inline testing::AssertionResult gradients_agree_in(double unit, const Gradients<float>& got,
                                                   const GradientProblem<float>& problem) {
  const ReferenceGradients& want = problem.want;
  const Case& what = problem.what();
  const Index terms = std::max(what.keys, what.queries * what.group);
  const auto check = [&](const char* name, const Tensor<float>& array, const Tensor<double>& wanted,
                         double magnitude) -> testing::AssertionResult {
    const Tolerance tolerance = gradient_tolerance<float>(terms, want.max_abs_score, magnitude);
    const auto verdict = gradient_is_near(name, array, wanted, unit, magnitude, tolerance);
    return verdict ? verdict : testing::AssertionFailure() << verdict.message() << "\n  " << to_string(what);
  };
  if (auto verdict = check("dq", got.q, want.q, want.magnitude_q); !verdict) return verdict;
  if (auto verdict = check("dk", got.k, want.k, want.magnitude_k); !verdict) return verdict;
  if (auto verdict = check("dv", got.v, want.v, want.magnitude_v); !verdict) return verdict;
  if (problem.forward.bias.size() == 0) return testing::AssertionSuccess();
  return check("dbias", got.bias, want.bias, want.magnitude_bias);
}

}  // namespace ring_attention::test
