// AdamW, the schedule, the norm of the gradient, and how parameters start.

#include "model/model_runs.hpp"

namespace ring_attention::test {
namespace {

TEST(Schedule, WarmsUpThenFallsByACosine) {
  const Recipe recipe{};
  EXPECT_DOUBLE_EQ(rate_at(recipe, 0), 1e-2 / 50);
  EXPECT_DOUBLE_EQ(rate_at(recipe, 49), 1e-2);
  EXPECT_DOUBLE_EQ(rate_at(recipe, 50), 1e-2);
  EXPECT_NEAR(rate_at(recipe, 225), (1e-2 + 1e-4) / 2, 1e-15);
  EXPECT_NEAR(rate_at(recipe, 400), 1e-4, 1e-15);
}

/// One matrix that decays and one gain that does not.
std::vector<ParameterLayout> two_parameters() {
  const Parameter matrix{"w", 1, 2, {0, 1}, {0, 2}, 1, true};
  const Parameter gain{"g", 1, 1, {0, 1}, {0, 1}, 0, false};
  return {ParameterLayout({matrix, gain})};
}

// Two steps by the formulas of the paper, by hand.
TEST(AdamW, TwoStepsByHand) {
  Weights<double> weights(two_parameters(), std::make_shared<OneRank>(), Sharding::none);
  AdamW<double> adam(weights);
  const Recipe recipe{.beta_1 = 0.9, .beta_2 = 0.99, .epsilon = 1e-8, .decay = 0.1};
  const std::array<double, 3> start{1, -2, 3};
  const std::array<std::array<double, 3>, 2> gradients{{{0.5, -1, 2}, {1, 3, -0.25}}};
  std::array<double, 3> want = start, m{}, v{};
  std::ranges::copy(start, weights.values(0).begin());
  for (int step = 0; step < 2; ++step) {
    const auto& g = gradients[static_cast<std::size_t>(step)];
    std::ranges::copy(g, weights.gradients(0).begin());
    adam.step(weights, recipe, 0.01, 0.5);
    for (std::size_t i = 0; i < 3; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * 0.5 * g[i];
      v[i] = 0.99 * v[i] + 0.01 * 0.25 * g[i] * g[i];
      const double unbiased_m = m[i] / (1 - std::pow(0.9, step + 1));
      const double unbiased_v = v[i] / (1 - std::pow(0.99, step + 1));
      want[i] -= 0.01 * (unbiased_m / (std::sqrt(unbiased_v) + 1e-8) + (i < 2 ? 0.1 : 0) * want[i]);
    }
  }
  EXPECT_EQ(adam.steps(), 2);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(weights.values(0)[i], want[i], 1e-14);
}

TEST(Clipping, TheStepUsesAGradientOfTheLargestNorm) {
  const RandomTask task(9);
  const Examples own = examples(task, {0, 2}, whole(9));
  const auto moments = [&](double clip) {
    Transformer<double> model(small_shape(), one_process<double>(9), 1);
    AdamW<double> adam(model.weights());
    Recipe recipe = small_recipe();
    recipe.clip = clip;
    const StepReport report = train_step(model, adam, recipe, own);
    EXPECT_EQ(report.rate, rate_at(recipe, 0));
    double squares = 0;  // of the first moments: 0.1 of the clipped gradient
    for (std::size_t array = 0; array < model.weights().arrays(); ++array)
      for (const double m : adam.first(array)) squares += m * m;
    return std::pair(std::sqrt(squares) * 10, report.gradient_norm);
  };
  const auto [free, norm] = moments(1e9);
  EXPECT_NEAR(free, norm, 1e-12 * norm);
  EXPECT_NEAR(moments(norm / 3).first, norm / 3, 1e-12 * norm);
}

TEST(Parameters, StartAsNormalNumbersOfTheirDeviation) {
  ModelShape shape = small_shape();
  shape.width = 64;
  const TensorPart part(shape, 0, 1);
  const ParameterLayout layout = layer_layout(shape, part);
  std::vector<double> values(static_cast<std::size_t>(layout.size()));
  initialise(layout, 3, 0, {0, layout.size()}, std::span(values));
  for (const Parameter& p : layout.parameters()) {
    double sum = 0, squares = 0;
    for (Index i = p.begin; i < p.elements().end; ++i) {
      sum += values[static_cast<std::size_t>(i)];
      squares += std::pow(values[static_cast<std::size_t>(i)], 2);
    }
    const auto n = static_cast<double>(p.size());
    if (p.deviation == 0) {
      EXPECT_EQ(sum, n) << p.name;
    } else {
      EXPECT_NEAR(sum / n, 0, 4 * p.deviation / std::sqrt(n)) << p.name;
      EXPECT_NEAR(std::sqrt(squares / n), p.deviation, 3 * p.deviation / std::sqrt(n)) << p.name;
    }
  }
}

TEST(Parameters, StartWithOtherNumbersForEachSeedLayerAndMatrix) {
  const ParameterLayout layout = layer_layout(small_shape(), TensorPart(small_shape(), 0, 1));
  const auto start = [&](std::uint64_t seed, Index layer, const char* name) {
    std::vector<double> flat(static_cast<std::size_t>(layout.size()));
    initialise(layout, seed, layer, {0, layout.size()}, std::span(flat));
    const std::span<double> matrix = layout.view(std::span(flat), name).elements();
    return std::vector<double>(matrix.begin(), matrix.end());
  };
  const std::vector<double> first = start(1, 0, "wk");
  EXPECT_NE(start(2, 0, "wk"), first);
  EXPECT_NE(start(1, 1, "wk"), first);
  EXPECT_NE(start(1, 0, "wv"), first);
}

TEST(Parameters, MatricesOfLayersDecayAndNoOthers) {
  const std::vector<std::pair<std::string, bool>> layer{{"norm_1", false}, {"wq", true}, {"wk", true},
                                                        {"wv", true},      {"wo", true}, {"norm_2", false},
                                                        {"w1", true},      {"w2", true}},
      ends{{"embedding", false}, {"norm", false}};
  for (const int ranks : {1, 8}) {
    std::vector<std::vector<std::pair<std::string, bool>>> got;
    for (const ParameterLayout& layout : layouts(small_shape(), TensorPart(small_shape(), 0, ranks))) {
      got.emplace_back();
      for (const Parameter& p : layout.parameters()) got.back().emplace_back(p.name, p.decays);
    }
    EXPECT_EQ(got, (std::vector{layer, layer, ends})) << ranks;
  }
}

TEST(Parameters, AllHaveNamesAndPlaces) {
  const ParameterLayout layout = layer_layout(small_shape(), TensorPart(small_shape(), 5, 8));
  Index begin = 0;
  for (const Parameter& p : layout.parameters()) {
    EXPECT_EQ(p.begin, begin);
    begin += p.size();
  }
  EXPECT_EQ(begin, layout.size());
  std::vector<double> flat(static_cast<std::size_t>(begin));
  EXPECT_EQ(layout.view(std::span(flat), "wk").shape(), (Shape{1, 1, 12, 4}));
  EXPECT_EQ(layout.view(std::span(flat), "w2").shape(), (Shape{1, 1, 2, 12}));
  EXPECT_THROW((void)layout.view(std::span(flat), "w3"), Error);
}

}  // namespace
}  // namespace ring_attention::test
