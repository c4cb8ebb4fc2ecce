// The backward of every layer against finite differences, in double.

#include <gtest/gtest.h>

#include <cmath>

#include "model/feed_forward.hpp"
#include "model/heads.hpp"
#include "model/layer.hpp"
#include "model/products.hpp"
#include "model/rms_norm.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/random.hpp"

namespace ring_attention::test {
namespace {

using namespace model;  // NOLINT: the folder under test
using Array = Tensor<double>;

Array random_array(const Shape& shape, std::uint64_t stream) {
  Array array(shape);
  fill_random(array.view(), {.seed = 3, .stream = stream});
  return array;
}

double dot(const Array& a, const Array& b) {
  EXPECT_EQ(a.shape(), b.shape());
  double sum = 0;
  for (Index i = 0; i < a.size(); ++i) sum += a.data()[i] * b.data()[i];
  return sum;
}

/// (L(x + h) - L(x - h)) / 2h for every number of `x`, and its relative distance from `got`, which is not larger than 1e-7.
void expect_slopes(View<const double> got, View<double> x, const std::function<double()>& loss) {
  constexpr double h = 1e-5;
  double error = 0, norm = 0;
  for (Index i = 0; i < x.size(); ++i) {
    const double at = x.data()[i];
    x.data()[i] = at + h;
    const double above = loss();
    x.data()[i] = at - h;
    const double slope = (above - loss()) / (2 * h);
    x.data()[i] = at;
    error += std::pow(got.data()[i] - slope, 2);
    norm += slope * slope;
  }
  EXPECT_GT(norm, 0);
  EXPECT_TRUE(std::sqrt(error / norm) <= 1e-7) << "relative error " << std::sqrt(error / norm);
}

TEST(Layers, Products) {
  Array x = random_array({2, 1, 3, 4}, 0), w = random_array({1, 1, 4, 5}, 1);
  const Array grad_y = random_array({2, 1, 3, 5}, 2);
  const auto loss = [&] {
    Array y(grad_y.shape());
    multiply<double>(x, w, y);
    return dot(y, grad_y);
  };
  Array grad_x(x.shape()), grad_w(w.shape());
  add_input_gradient<double>(grad_y, w, grad_x);
  add_weight_gradient<double>(x, grad_y, grad_w);
  expect_slopes(grad_x, x, loss);
  expect_slopes(grad_w, w, loss);
}

TEST(Layers, RmsNorm) {
  Array x = random_array({2, 1, 3, 6}, 0), gain = random_array({1, 1, 1, 6}, 1);
  const Array grad_y = random_array(x.shape(), 2);
  const auto loss = [&] {
    Array y(x.shape());
    rms_norm<double>(x, gain, y);
    return dot(y, grad_y);
  };
  Array grad_x(x.shape()), grad_gain(gain.shape());
  add_rms_norm_gradient<double>(x, gain, grad_y, grad_x, grad_gain);
  expect_slopes(grad_x, x, loss);
  expect_slopes(grad_gain, gain, loss);
  const Array small({1, 1, 1, 6}, 1e-3), one({1, 1, 1, 6}, 1.0);  // mean(x^2) is what is added to it
  Array y(small.shape());
  rms_norm<double>(small, one, y);
  EXPECT_NEAR(y.data()[0], std::sqrt(0.5), 1e-12);
}

// Pair i turns by position * theta^(-2 i / columns); what is behind these columns stays.
TEST(Layers, RotaryAngles) {
  Array x({1, 1, 1, 6}, 1.0);
  rotate<double>(x, {{3, 1, 1}}, 4, 100, 1);
  for (const auto& [pair, angle] :
       {std::pair(Index{0}, 3.0), std::pair(Index{1}, 0.3), std::pair(Index{2}, 0.0)}) {
    EXPECT_NEAR(x.data()[2 * pair], std::cos(angle) - std::sin(angle), 1e-14);
    EXPECT_NEAR(x.data()[2 * pair + 1], std::sin(angle) + std::cos(angle), 1e-14);
  }
}

TEST(Layers, RotaryPositions) {
  const TokenRanges striped{{1, 3, 4}};
  Array x = random_array({2, 2, 4, 6}, 0);
  const Array grad_y = random_array(x.shape(), 1);
  const auto loss = [&] {
    Array y = x.clone();
    rotate<double>(y, striped, 4, 100, 1);
    return dot(y, grad_y);
  };
  Array grad_x = grad_y.clone();
  rotate<double>(grad_x, striped, 4, 100, -1);
  expect_slopes(grad_x, x, loss);
}

// A score of two turned rows depends on the distance of their positions only.
TEST(Layers, RotaryScoresDependOnTheDistance) {
  const Array row = random_array({1, 1, 1, 4}, 0), other = random_array({1, 1, 1, 4}, 1);
  const auto score = [&](Index a, Index b) {
    Array q = row.clone(), k = other.clone();
    rotate<double>(q, {{a, 1, 1}}, 4, 100, 1);
    rotate<double>(k, {{b, 1, 1}}, 4, 100, 1);
    return dot(q, k);
  };
  EXPECT_NEAR(score(7, 3), score(1007, 1003), 1e-12);
  EXPECT_GT(std::abs(score(7, 3) - score(7, 4)), 1e-3);
}

TEST(Layers, HeadsSplitAndJoin) {
  const Array rows = random_array({2, 1, 3, 8}, 0);
  const Array heads = split_heads<double>(rows, 2);
  EXPECT_EQ(heads.shape(), (Shape{2, 2, 3, 4}));
  EXPECT_EQ(heads.view()(1, 1, 2, 3), rows.view()(1, 0, 2, 7));
  EXPECT_TRUE(bitwise_equal(join_heads<double>(heads), rows));
}

TEST(Layers, FeedForwardOfAnyChunk) {
  Array y = random_array({2, 1, 5, 4}, 0), norm = random_array({1, 1, 1, 4}, 1),
        w1 = random_array({1, 1, 4, 7}, 2), w2 = random_array({1, 1, 7, 4}, 3);
  const Array grad_z = random_array(y.shape(), 4);
  const FeedForward<const double> weights{norm, w1, w2};
  const auto loss = [&] { return dot(feed_forward<double>(y, weights, 3), grad_z); };
  for (const Index chunk : {1, 3, 10, 64}) {
    Array grad_norm(norm.shape()), grad_w1(w1.shape()), grad_w2(w2.shape()), grad_y(y.shape());
    const Array grad_n = feed_forward_gradient<double>(y, weights, grad_z, grad_w1, grad_w2, chunk);
    add_rms_norm_gradient<double>(y, norm, grad_n, grad_y, grad_norm);
    expect_slopes(grad_y, y, loss);
    expect_slopes(grad_norm, norm, loss);
    expect_slopes(grad_w1, w1, loss);
    expect_slopes(grad_w2, w2, loss);
    EXPECT_TRUE(compare(feed_forward<double>(y, weights, chunk), feed_forward<double>(y, weights, 3),
                        {.absolute = 1e-13, .relative = 1e-13})
                    .ok);
  }
}

// The whole layer: residuals, both norms, projections, rotary positions, attention with GQA and dropout, feed-forward.
TEST(Layers, WholeLayer) {
  ModelShape shape{.vocabulary = 2,
                   .classes = 2,
                   .width = 6,
                   .heads = 4,
                   .kv_heads = 2,
                   .dim = 4,
                   .hidden = 5,
                   .rotary = 4};
  const TensorPart part(shape, 0, 1);
  const ParameterLayout layout = layer_layout(shape, part);
  Array flat({1, 1, 1, layout.size()});
  initialise(layout, 1, 0, {0, layout.size()}, flat.view().elements());
  Array x = random_array({2, 1, 7, 6}, 0);
  const Array grad_z = random_array(x.shape(), 1);
  const RankContext<double> place = one_process<double>(7);
  for (const double probability : {0.0, 0.3}) {
    LayerOptions options{shape, {0.5, Mask::causal()}, 4};
    options.scoring.dropout = {.probability = probability, .seed = 2};
    const auto weights = [&] {
      return LayerParameters<const double>(layout, std::as_const(flat).view().elements());
    };
    const auto loss = [&] {
      Checkpoint<double> kept;
      return dot(layer_forward(options, place, weights(), x.clone(), kept), grad_z);
    };
    Checkpoint<double> kept;
    (void)layer_forward(options, place, weights(), x.clone(), kept);
    GradientSums<double> gradient(layout, {});
    const Array grad_x = layer_backward(options, place, weights(), kept, grad_z.clone(), gradient);
    expect_slopes(grad_x, x, loss);
    for (const Parameter& parameter : layout.parameters()) {
      SCOPED_TRACE(parameter.name);
      expect_slopes(layout.view(gradient.floats(), parameter.name),
                    layout.view(flat.view().elements(), parameter.name), loss);
    }
  }
}

}  // namespace
}  // namespace ring_attention::test
