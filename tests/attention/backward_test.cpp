// The dense and the tiled gradients against finite differences, and against each other.

#include "ring_attention/attention/blockwise_backward.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <span>

#include "conformance/cases.hpp"
#include "support/gradients.hpp"

namespace ring_attention::test {
namespace {

/// The number of which all these gradients are: L = sum(out * dO).
double loss(const Problem<double>& problem, const Tensor<double>& grad_out) {
  const Reference forward =
      reference_forward(problem.q, problem.k, problem.v, problem.what.scoring, problem.bias);
  double sum = 0;
  for (Index i = 0; i < grad_out.size(); ++i) sum += forward.out.data()[i] * grad_out.data()[i];
  return sum;
}

/// (L(x + h) - L(x - h)) / 2h, where x is a number of the problem.
double slope(const GradientProblem<double>& problem, double& x) {
  constexpr double h = 1e-5;  // the error h^2 L''' / 6 and the rounding error eps L / h both are about 1e-10
  const double at = x;
  x = at + h;
  const double above = loss(problem.forward, problem.grad_out);
  x = at - h;
  const double below = loss(problem.forward, problem.grad_out);
  x = at;
  return (above - below) / (2 * h);
}

/// The slope for every element of `array`, which is one of the problem's own.
Tensor<double> central_differences(const GradientProblem<double>& problem, Tensor<double>& array) {
  Tensor<double> slopes(array.shape());
  for (Index i = 0; i < array.size(); ++i) slopes.data()[i] = slope(problem, array.data()[i]);
  return slopes;
}

/// ||got - want|| / ||want|| below 1e-7: one tensor at a time, so that an error in one is not hidden by the others.
testing::AssertionResult near(const Tensor<double>& got, const Tensor<double>& want) {
  const Comparison comparison = compare(got, want, {.absolute = 1e-4});  // finite, not all zero
  if (comparison.ok && comparison.relative_error < 1e-7) return testing::AssertionSuccess();
  return testing::AssertionFailure() << describe(comparison);
}

void expect_gradients_of_the_loss(GradientProblem<double>& problem) {
  const Tensor<double> q = central_differences(problem, problem.forward.q);
  const Tensor<double> k = central_differences(problem, problem.forward.k);
  const Tensor<double> v = central_differences(problem, problem.forward.v);
  EXPECT_TRUE(near(problem.want.q, q)) << "dq, dense";
  EXPECT_TRUE(near(problem.want.k, k)) << "dk, dense";
  EXPECT_TRUE(near(problem.want.v, v)) << "dv, dense";
  const Gradients<double> tiled = device_gradients(problem);
  EXPECT_TRUE(near(tiled.q, q)) << "dq, tiled";
  EXPECT_TRUE(near(tiled.k, k)) << "dk, tiled";
  EXPECT_TRUE(near(tiled.v, v)) << "dv, tiled";
  if (problem.forward.bias.size() > 0) {
    const Tensor<double> bias = central_differences(problem, problem.forward.bias);
    EXPECT_TRUE(near(problem.want.bias, bias)) << "dbias, dense";
    EXPECT_TRUE(near(tiled.bias, bias)) << "dbias, tiled";
  }
  if (problem.what().scoring.sinks.empty()) return;
  std::vector<double> slopes;
  slopes.reserve(problem.forward.what.scoring.sinks.size());
  for (double& sink : problem.forward.what.scoring.sinks) slopes.push_back(slope(problem, sink));
  const Tensor<double> sinks = as_tensor(slopes);
  EXPECT_TRUE(near(as_tensor(problem.want.sinks), sinks)) << "dsinks, dense";
  EXPECT_TRUE(near(as_tensor(tiled.sinks), sinks)) << "dsinks, tiled";
}

// ---- finite differences --------------------------------------------------------------------------------

// Square, more keys than queries, more queries than keys (the first of which see nothing under some masks); a bias, sinks,
// a softcap, dropout, the width of V and the tiles are in turn with these.
TEST(FiniteDifferences, OfEveryMaskAndTerm) {
  constexpr std::pair<Index, Index> lengths[] = {{6, 6}, {4, 7}, {7, 5}};
  constexpr Index blocks[] = {2, 1, 3, 64}, value_dims[] = {0, 1, 5};
  std::size_t turn = 0;
  for (const Index group : {1, 2, 8})
    for (const auto& [queries, keys] : lengths)
      for (const auto& [name, scoring] : every_scoring(queries, keys, 2 * group, 0.6)) {
        Case what{.batch = group == 1 ? 2 : 1,
                  .kv_heads = 2,
                  .group = group,
                  .queries = queries,
                  .keys = keys,
                  .dim = 3,
                  .scoring = scoring,
                  .block = blocks[turn % 4],
                  .value_dim = value_dims[turn % 3]};
        add_terms(what, turn++);
        SCOPED_TRACE(name + ": " + to_string(what));
        auto problem = make_gradient_problem<double>(what);
        expect_gradients_of_the_loss(problem);
      }
}

// ---- by hand -------------------------------------------------------------------------------------------

// One query, two keys of equal score: P = 1/2, dP = (0, 2), delta = 1, dS = (-1/2, 1/2).
TEST(Gradients, OfOneQueryAndTwoKeysByHand) {
  Tensor<double> q({1, 1, 1, 1}, 3.0), k({1, 1, 2, 1}, 5.0), v({1, 1, 2, 1}), grad_out({1, 1, 1, 1}, 1.0);
  v.data()[1] = 2;
  const ReferenceGradients dense = reference_backward(q, k, v, grad_out, {0.5});
  const AttentionResult<double> attended = blockwise_forward<double>(q, k, v, {0.5});
  const auto tiled = blockwise_backward<double>({q, attended.out, attended.lse, grad_out}, k, v, {0.5});
  for (const Tensor<double>* grad_q : {&dense.q, &tiled.q}) EXPECT_DOUBLE_EQ(grad_q->data()[0], 0);
  for (const Tensor<double>* grad_k : {&dense.k, &tiled.k}) {
    EXPECT_DOUBLE_EQ(grad_k->data()[0], -0.75);  // scale * dS * q = 0.5 * -0.5 * 3
    EXPECT_DOUBLE_EQ(grad_k->data()[1], 0.75);
  }
  for (const Tensor<double>* grad_v : {&dense.v, &tiled.v}) {
    EXPECT_DOUBLE_EQ(grad_v->data()[0], 0.5);
    EXPECT_DOUBLE_EQ(grad_v->data()[1], 0.5);
  }
}

// The two keys of the test above, with dO = 0 and dlse = 1: dS = P = (1/2, 1/2).
TEST(Gradients, OfLseByHand) {
  const Tensor<double> q({1, 1, 1, 1}, 3.0), k({1, 1, 2, 1}, 5.0), v({1, 1, 2, 1}, 7.0), zero({1, 1, 1, 1}),
      one({1, 1, 1, 1}, 1.0);
  const AttentionResult<double> attended = blockwise_forward<double>(q, k, v, {0.5});
  const auto tiled =
      blockwise_backward<double>({q, attended.out, attended.lse, zero, {}, one.view()}, k, v, {0.5});
  EXPECT_DOUBLE_EQ(tiled.q.data()[0], 2.5);   // scale * sum dS k = 0.5 * (0.5 * 5 + 0.5 * 5)
  EXPECT_DOUBLE_EQ(tiled.k.data()[0], 0.75);  // scale * dS * q = 0.5 * 0.5 * 3
  EXPECT_DOUBLE_EQ(tiled.k.data()[1], 0.75);
  EXPECT_EQ(tiled.v.data()[0], 0);
}

TEST(Gradients, RowDotByHand) {
  Tensor<double> a({2, 1, 2, 3}), b({2, 1, 2, 3});
  for (Index i = 0; i < a.size(); ++i) {
    a.data()[i] = static_cast<double>(i);
    b.data()[i] = static_cast<double>(i % 3 + 1);
  }
  const Tensor<double> delta = row_dot<double>(a, b);
  EXPECT_EQ(delta.shape(), (Shape{2, 1, 2, 1}));
  EXPECT_EQ(delta.data()[0], 0 * 1 + 1 * 2 + 2 * 3);
  EXPECT_EQ(delta.data()[1], 3 * 1 + 4 * 2 + 5 * 3);
  EXPECT_EQ(delta.view()(1, 0, 1), 9 * 1 + 10 * 2 + 11 * 3);
  EXPECT_EQ(row_dot<float>(Tensor<float>({1, 2, 0, 4}), Tensor<float>({1, 2, 0, 4})).size(), 0);
}

// ---- tiled against dense -------------------------------------------------------------------------------

template <class T>
class GradientsIn : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(GradientsIn, Types);

template <class T>
void expect_only_zeros(const Tensor<T>& array) {
  for (const T x : array.view().elements()) EXPECT_EQ(x, 0);
}

// For any values in dO, K and V.
TYPED_TEST(GradientsIn, WhereNoQuerySeesAKeyAllAreZero) {
  for (const Mask& mask : {Mask{.right = -5}, Mask{.left = -5}, Mask{.left = 2, .offset = 100},
                           Mask{.documents = std::make_shared<const Documents>(std::vector<Index>{0})}}) {
    const auto problem = make_gradient_problem<TypeParam>(
        {.group = 2, .queries = 5, .keys = 5, .scoring = {1, mask}, .block = 2});
    EXPECT_EQ(most_visible_keys(problem.what()), 0);
    const Gradients<TypeParam> got = device_gradients(problem);
    EXPECT_TRUE(agrees(got, problem));
    expect_only_zeros(got.q);
    expect_only_zeros(got.k);
    expect_only_zeros(got.v);
  }
}

// The check itself: it fails for one gradient times 0.999 in float, also where logits are spiked.
TYPED_TEST(GradientsIn, DoNotAgreeTimesAFactor) {
  Case what{.kv_heads = 2,
            .group = 2,
            .queries = 70,
            .keys = 90,
            .dim = 32,
            .scoring = {0.05, Mask::causal(20)},
            .spike_every = 8};
  what.bias_batch = 1;
  what.bias_heads = 4;
  what.scoring.sinks = {0.5, -1, 0, 2};
  const auto problem = make_gradient_problem<TypeParam>(what);
  const auto gradients = [&] {
    const ReferenceGradients& want = problem.want;
    return Gradients<TypeParam>{converted<TypeParam>(want.q),
                                converted<TypeParam>(want.k),
                                converted<TypeParam>(want.v),
                                {{converted<TypeParam>(want.bias)}, want.numbers()}};
  };
  EXPECT_TRUE(agrees(gradients(), problem));
  const double factor = 1 - 8000 * double{std::numeric_limits<TypeParam>::epsilon()};
  const auto expect_failure = [&](const char* name, auto&& array_of) {
    auto wrong = gradients();
    for (auto& x : array_of(wrong)) x = static_cast<std::remove_reference_t<decltype(x)>>(x * factor);
    EXPECT_FALSE(agrees(wrong, problem)) << name;
  };
  expect_failure("dq", [](auto& of) { return of.q.view().elements(); });
  expect_failure("dk", [](auto& of) { return of.k.view().elements(); });
  expect_failure("dv", [](auto& of) { return of.v.view().elements(); });
  expect_failure("dbias", [](auto& of) { return of.bias.view().elements(); });
  expect_failure("dsink", [](auto& of) { return std::span(of.sinks); });
}

/// got times (1 - x), where x is 2e-3, or more where right results are inaccurate.
void scale_beyond_its_error(Tensor<float>& got, const Tensor<double>& want) {
  const Comparison right = compare(got, want, {});
  const double x = 2e-3 + 60 * right.relative_error;
  for (float& number : got.view().elements()) number = static_cast<float>(number * (1 - x));
}

// Where the softmax is nearly constant, dq and dk are small beside the sizes of their terms, and the magnitudes of a
// whole array say little.
TEST(GradientsInFloat, AgreeOnRandomProblemsAndNotTimesAFactor) {
  for_each_case(300, [](Dice& dice, Index index) {
    const auto problem = make_gradient_problem<float>(random_case(dice, index, 3));
    Gradients<float> got = device_gradients(problem);
    EXPECT_TRUE(agrees(got, problem));
    const auto is_noise = [](const Tensor<double>& want) {
      return std::ranges::all_of(want.view().elements(), [](double x) { return std::abs(x) < 1e-30; });
    };
    if (!is_noise(problem.want.q)) {
      scale_beyond_its_error(got.q, problem.want.q);
      EXPECT_FALSE(grad_q_agrees(got.q, problem));
    }
    if (!is_noise(problem.want.k)) {
      scale_beyond_its_error(got.k, problem.want.k);
      EXPECT_FALSE(grad_k_agrees(got.k, problem));
    }
  });
}

// ---- the engine ----------------------------------------------------------------------------------------

TYPED_TEST(GradientsIn, ReportProgressAfterEveryTile) {
  const auto problem = make_gradient_problem<TypeParam>(
      {.batch = 2, .queries = 5, .keys = 8, .scoring = {1, Mask::causal(3)}, .block = 4});
  const Problem<TypeParam>& p = problem.forward;
  const auto attended = blockwise_forward<TypeParam>(p.q, p.k, p.v, p.what.scoring, 4);
  Tensor<TypeParam> grad_k(p.what.kv()), grad_v(p.what.kv());
  BlockwiseBackward<TypeParam> engine(p.what.scoring, 4);
  engine.begin({p.q, attended.out, attended.lse, problem.grad_out}, whole(5));
  Index tiles = 0;
  engine.accumulate({p.k, p.v, whole(8)}, {grad_k, grad_v}, [&] { ++tiles; });
  EXPECT_EQ(tiles, 2 * 2 * (2 * 2));  // batch, heads, tiles: also those that the mask hides
}

}  // namespace
}  // namespace ring_attention::test
