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
  EXPECT_EQ(model.evaluate(own).accuracy(), 1);
  Examples wrong = own;
  for (Index& label : wrong.label) label = label == Task::none ? label : (label + 1) % task.classes();
  EXPECT_EQ(model.evaluate(wrong).accuracy(), 0);
}

TEST(Transformer, DropoutChangesWithTheSeed) {
  Training what{.steps = 1};
  const Trained without = train_alone<double>(what);
  what.dropout = {.probability = 0.5, .seed = 1};
  const Trained with = train_alone<double>(what);
  what.dropout.seed = 2;
  EXPECT_NE(with.steps[0].score.loss, without.steps[0].score.loss);
  EXPECT_NE(with.steps[0].score.loss, train_alone<double>(what).steps[0].score.loss);
}

// The weights stay: what changes the loss is the mask of the next step.
TEST(Transformer, DropoutChangesWithTheStep) {
  const RandomTask task(9);
  const Examples own = examples(task, two, whole(9));
  const auto losses = [&](const Dropout& dropout) {
    Transformer<double> model(small_shape(), one_process<double>(9), 1);
    model.scoring().dropout = dropout;
    AdamW<double> adam(model.weights());
    const Recipe stays{.rate = 0, .last_rate = 0};
    const double first = train_step(model, adam, stays, own).score.loss;
    return std::pair(first, train_step(model, adam, stays, own).score.loss);
  };
  const auto without = losses({}), with = losses({.probability = 0.5, .seed = 1});
  EXPECT_EQ(without.first, without.second);
  EXPECT_NE(with.first, with.second);
}

// The layers one by one, each with the mask of the number that it is given here.
TEST(Transformer, DropoutChangesWithTheLayer) {
  const RandomTask task(9);
  const Examples own = examples(task, two, whole(9));
  Transformer<double> model(small_shape(), one_process<double>(9), 1);
  model.scoring().dropout = {.probability = 0.5, .seed = 1};
  const auto loss_with_masks = [&](const std::array<Index, 2>& numbers) {
    Weights<double>& weights = model.weights();
    const EmbeddingParameters<const double> ends(weights.layout(2), weights.values(2));
    Tensor<double> x = embed(model.shape(), ends.embedding, own);
    for (std::size_t layer = 0; layer < 2; ++layer) {
      LayerOptions options{model.shape(), model.scoring()};
      options.scoring.dropout.layer = numbers[layer];
      Checkpoint<double> kept;
      x = layer_forward(options, model.rank_context(),
                        LayerParameters<const double>(weights.layout(layer), weights.values(layer)),
                        std::move(x), kept);
    }
    return answer<double>(model.shape(), ends, own, x, model.rank_context().rows).loss;
  };
  const double got = model.differentiate(own).loss;
  EXPECT_DOUBLE_EQ(got, loss_with_masks({0, 1}));
  EXPECT_GT(std::abs(got - loss_with_masks({0, 0})), 1e-3);
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
