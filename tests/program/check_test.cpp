// `--check` of results that are right but for one number of the last rank.
#include "program/run/check.hpp"

#include "ring_attention/attention/reference.hpp"
#include "ring_attention/core/bf16.hpp"
#include "ring_attention/cpu/attention_backward.hpp"
#include "support/problem.hpp"
#include "support/ranks_and_files.hpp"

namespace ring_attention::test {
namespace {

class CheckResults : public RanksAndFiles {};

TEST_F(CheckResults, EachArrayFailsBeyondItsTolerance) {
  constexpr Index heads = 4, seq = 13;
  if (comm_.rank() == 0) {
    write_npy<float>(at("bias.npy"),
                     random_bias<float>({.queries = seq, .keys = seq, .bias_batch = 1, .bias_heads = 1}));
    write_npy<float>(at("sink.npy"), Tensor<float>({1, 1, heads, 1}, 0.5F), {heads});
  }
  wait();
  RunOptions options;
  options.random = {2, heads, seq, 8};
  options.kv_heads = 2;
  options.backward = true;
  options.bias = at("bias.npy");
  options.sink = at("sink.npy");
  const RunInput input(comm_, options);

  const auto read = [&](InputArray array) { return input.read<float>(array, whole(seq)); };
  const Tensor<float> all_q = read(InputArray::q), all_k = read(InputArray::k), all_v = read(InputArray::v),
                      all_bias = read(InputArray::bias), all_grad_out = read(InputArray::grad_out);
  const auto exact = [](const Tensor<float>& array) { return converted<double>(array); };
  const Tensor<double> q64 = exact(all_q), k64 = exact(all_k), v64 = exact(all_v), bias64 = exact(all_bias);
  const Reference want = reference_forward(q64, k64, v64, input.scoring(), bias64);
  const ReferenceGradients slopes =
      reference_backward(q64, k64, v64, exact(all_grad_out), input.scoring(), bias64);

  const TokenRanges own = contiguous(seq, comm_.rank(), comm_.size());
  const auto shard = [&](const Tensor<double>& array) { return rows_of(converted<float>(array), own); };
  const Tensor<float> bias = rows_of(all_bias, own);
  const Tensor<float> q = rows_of(all_q, own), grad_out = rows_of(all_grad_out, own);
  AttentionResult<float> forward{shard(want.out), shard(want.lse)};
  Gradients<float> gradients{
      shard(slopes.q), shard(slopes.k), shard(slopes.v), {{shard(slopes.bias)}, slopes.numbers()}};
  const RankResults<float> results{own, own, &q, &bias, &forward, &grad_out, &gradients};

  std::vector<bool> given(static_cast<std::size_t>(Result::numbers), true);
  each_number([&](const char*, auto numbers) { given.push_back(!numbers.empty()); }, gradients);

  const bool spoils = comm_.rank() == comm_.size() - 1;
  const auto expect = [&](Result spoilt, auto& number, const Tolerance& tolerance) {
    const auto right = number;
    const double bound = tolerance.absolute + tolerance.relative * std::abs(static_cast<double>(right));
    for (const double times : {0.01, 3.0, 50.0}) {  // the norm of a gradient's error is judged as well
      if (spoils) number = static_cast<std::remove_reference_t<decltype(number)>>(right + times * bound);
      RankReport report;
      Activity activity;
      check_results(comm_, input, results, report, activity);
      for (std::size_t i = 0; i < result_count; ++i) {
        if (!given[i]) continue;
        EXPECT_GT(report.errors[i].rows, 0) << result_name(i);
        const bool wrong = spoils && times > 1 && static_cast<Result>(i) == spoilt;
        EXPECT_EQ(report.errors[i].ok, !wrong)
            << result_name(i) << " where " << result_name(static_cast<std::size_t>(spoilt)) << " is wrong by "
            << times << " tolerances";
      }
    }
    number = right;
  };
  const auto middle = [](Tensor<float>& array) -> float& { return array.data()[array.size() / 2]; };
  const Tolerance attended = attention_tolerance<float>(seq, want.max_abs_score, want.max_abs_value);
  const auto of = [&](double magnitude) {
    return gradient_tolerance<float>(seq * heads / 2, want.max_abs_score, magnitude);
  };
  expect(Result::out, middle(forward.out), attended);
  expect(Result::lse, middle(forward.lse), attended);
  expect(Result::dq, middle(gradients.q), of(slopes.magnitude_q));
  expect(Result::dk, middle(gradients.k), of(slopes.magnitude_k));
  expect(Result::dv, middle(gradients.v), of(slopes.magnitude_v));
  expect(Result::dbias, middle(gradients.bias), of(slopes.magnitude_bias));
  auto result = static_cast<int>(Result::numbers);
  each_number(
      [&](const char*, auto got, auto magnitudes) {
        const auto spoilt = static_cast<Result>(result++);
        if (!got.empty()) expect(spoilt, got.back(), of(std::ranges::max(magnitudes)));
      },
      gradients, slopes.magnitudes);

  // Each element is within its bound, and the norm of the error is not.
  const auto expect_factor_fails = [&](Result spoilt, Tensor<float>& array) {
    const Tensor<float> right = array.clone();
    for (float& x : array.view().elements())
      if (spoils) x *= 0.9999F;
    RankReport report;
    Activity activity;
    check_results(comm_, input, results, report, activity);
    EXPECT_EQ(report.error(spoilt).ok, !spoils) << result_name(static_cast<std::size_t>(spoilt));
    array = right.clone();
  };
  expect_factor_fails(Result::dq, gradients.q);
  expect_factor_fails(Result::dk, gradients.k);
  expect_factor_fails(Result::dv, gradients.v);
  expect_factor_fails(Result::dbias, gradients.bias);
}

// Above 16k tokens: some rows of out, lse and dq, some keys of dk and dv.
TEST_F(CheckResults, SomeRowsAndSomeKeysOfALongSequence) {
  constexpr Index seq = check_all_rows_up_to + 7;
  RunOptions options;
  options.random = {1, 1, seq, 4};
  options.backward = options.causal = true;
  const RunInput input(comm_, options);
  const auto read = [&](InputArray array) { return input.read<float>(array, whole(seq)); };
  const Tensor<float> all_q = read(InputArray::q), all_k = read(InputArray::k), all_v = read(InputArray::v),
                      all_grad_out = read(InputArray::grad_out);
  const auto right = attention_forward<float>(all_q, all_k, all_v, input.scoring());
  const auto slopes = attention_backward<float>({all_q, right.out, right.lse, all_grad_out, {}}, all_k, all_v,
                                                input.scoring());

  const TokenRanges own = contiguous(seq, comm_.rank(), comm_.size());
  const Tensor<float> q = rows_of(all_q, own), grad_out = rows_of(all_grad_out, own);
  const Tensor<float> no_bias;
  AttentionResult<float> forward{rows_of(right.out, own), rows_of(right.lse, own)};
  Gradients<float> gradients{rows_of(slopes.q, own), rows_of(slopes.k, own), rows_of(slopes.v, own)};
  RankResults<float> results{own, own, &q, &no_bias, &forward, &grad_out, &gradients};
  const auto check = [&] {
    RankReport report;
    Activity activity;
    check_results(comm_, input, results, report, activity);
    return report;
  };
  const bool spoils = comm_.rank() == comm_.size() - 1;
  for (const double unit : {0.0, 2 * Bf16::unit}) {  // the roundings that are allowed, not made
    results.kv_unit = unit;
    const RankReport well = check();
    for (const Result result : {Result::out, Result::lse, Result::dq, Result::dk, Result::dv}) {
      const ErrorReport& error = well.errors[static_cast<std::size_t>(result)];
      EXPECT_TRUE(error.ok) << result_name(static_cast<std::size_t>(result)) << " " << error.max;
      EXPECT_GE(error.rows, result == Result::dk || result == Result::dv ? 64 : 128);
      EXPECT_LT(error.rows, 130);
    }
    using Spoilt = std::vector<std::pair<Result, Tensor<float>*>>;
    const Spoilt arrays =
        unit > 0
            ? Spoilt{{Result::dk, &gradients.k}, {Result::dv, &gradients.v}}
            : Spoilt{{Result::out, &forward.out}, {Result::lse, &forward.lse}, {Result::dq, &gradients.q}};
    for (const auto& [result, array] : arrays)
      for (float& x : array->view().elements()) x = spoils ? x * 0.8F : x;
    RankReport report = check();
    for (const auto& [result, array] : arrays)
      EXPECT_EQ(report.error(result).ok, !spoils) << result_name(static_cast<std::size_t>(result));
    forward = {rows_of(right.out, own), rows_of(right.lse, own)};
    gradients = {rows_of(slopes.q, own), rows_of(slopes.k, own), rows_of(slopes.v, own)};
  }

  if (spoils) gradients.k.data()[0] += 1;
  if (spoils) forward.out.data()[forward.out.size() - 1] += 1;  // the last row is one of those
  RankReport report = check();
  EXPECT_EQ(report.error(Result::out).ok, !spoils);
  EXPECT_EQ(report.error(Result::dk).ok, !spoils);
  EXPECT_TRUE(report.error(Result::dv).ok && report.error(Result::dq).ok);
}

}  // namespace
}  // namespace ring_attention::test
