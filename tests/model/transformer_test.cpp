// The whole model in one process: its gradients against finite differences, the feed-forward's chunk, float, dropout.

#include "model/model_runs.hpp"
#include "support/input_error.hpp"

namespace ring_attention::test {
namespace {

const Interval two{0, 2};

TEST(Transformer, GradientsOfTheLossByFiniteDifferences) {
  const RandomTask task(9);
  const Examples own = examples(task, two, whole(9));
  Transformer<double> model(small_shape(), one_process<double>(9), 1);
  (void)model.differentiate(own);
  for (std::size_t array = 0; array < model.weights().arrays(); ++array)
    for (const Parameter& parameter : model.weights().layout(array).parameters()) {
      double error = 0, norm = 0;
      for (Index i = parameter.begin; i < parameter.elements().end; ++i) {
        constexpr double h = 1e-5;
        double& x = model.weights().values(array)[static_cast<std::size_t>(i)];
        const double at = x;
        x = at + h;
        const double above = model.evaluate(own).mean_loss();
        x = at - h;
        const double slope = (above - model.evaluate(own).mean_loss()) / (2 * h);
        x = at;
        error += std::pow(model.weights().gradients(array)[static_cast<std::size_t>(i)] - slope, 2);
        norm += slope * slope;
      }
      EXPECT_GT(norm, 0) << parameter.name;
      EXPECT_TRUE(std::sqrt(error / norm) <= 1e-7) << parameter.name << ' ' << std::sqrt(error / norm);
    }
}

TEST(Transformer, TheChunkChangesRoundingOnly) {
  Training what;
  const Trained want = train_alone<double>(what);
  for (const Index chunk : {1, 64, 1000}) {
    what.chunk = chunk;
    const Trained got = train_alone<double>(what);
    EXPECT_TRUE(near(got.gradients, want.gradients, 1e-11));
    EXPECT_TRUE(near(got.weights, want.weights, 1e-9));
  }
}

TEST(Transformer, FloatAgreesWithDouble) {
  const Training what{.steps = 1};
  EXPECT_TRUE(near(train_alone<float>(what).gradients, train_alone<double>(what).gradients, 1e-4));
}

TEST(Transformer, TrainingLowersTheLoss) {
  const RandomTask task(9);
  const Examples own = examples(task, {0, 1}, whole(9));
  Transformer<double> model(small_shape(), one_process<double>(9), 1);
  AdamW<double> adam(model.weights());
  const double before = model.evaluate(own).mean_loss();
  for (int step = 0; step < 60; ++step) (void)train_step(model, adam, {.warm_up = 5, .steps = 60}, own);
  EXPECT_LT(model.evaluate(own).mean_loss(), 0.1 * before);
}

TEST(Transformer, DropoutChangesWithStepLayerAndSeed) {
  Training what{.steps = 2};
  const Trained without = train_alone<double>(what);
  what.dropout = {.probability = 0.5, .seed = 1};
  const Trained with = train_alone<double>(what);
  what.dropout.seed = 2;
  EXPECT_NE(with.steps[0].score.loss, without.steps[0].score.loss);
  EXPECT_NE(with.steps[0].score.loss, train_alone<double>(what).steps[0].score.loss);
}

TEST(Transformer, AnEvaluationDropsNothing) {
  const RandomTask task(9);
  const Examples own = examples(task, two, whole(9));
  Transformer<double> model(small_shape(), one_process<double>(9), 1);
  const double loss = model.evaluate(own).loss;
  model.scoring().dropout = {.probability = 0.5, .seed = 1};
  EXPECT_EQ(model.evaluate(own).loss, loss);
  EXPECT_NE(model.differentiate(own).loss, loss);
}

TEST(Transformer, ALossThatIsNotFiniteIsAnErrorWithItsStep) {
  const RandomTask task(9);
  Transformer<double> model(small_shape(), one_process<double>(9), 1);
  AdamW<double> adam(model.weights());
  model.weights().values(0)[20] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(
      input_error([&] { (void)train_step(model, adam, small_recipe(), examples(task, two, whole(9))); }),
      "step 0: the loss or its gradient is not finite: use a smaller learning rate");
  EXPECT_EQ(adam.steps(), 0);
}

TEST(Transformer, SizesThatDoNotBelongTogether) {
  const auto refused = [](auto change) {
    ModelShape shape = small_shape();
    change(shape);
    EXPECT_THROW(Transformer<double>(shape, one_process<double>(4), 1), InputError);
  };
  refused([](ModelShape& shape) { shape.kv_heads = 3; });
  refused([](ModelShape& shape) { shape.rotary = 3; });
  refused([](ModelShape& shape) { shape.width = 13; });
  refused([](ModelShape& shape) { shape.classes = 40; });
  refused([](ModelShape& shape) { shape.layers = 0; });
}

}  // namespace
}  // namespace ring_attention::test
