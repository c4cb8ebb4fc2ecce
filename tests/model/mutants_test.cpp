// Wrong variants of a sharded model that look right: which check rejects each, and which one it slips past.

#include "model/model_runs.hpp"

namespace ring_attention::test {
namespace {

const MeshShape ring_of_four{1, 1, 4, 1};

/// The first gradients of a training, which a right model has like one process.
testing::AssertionResult right(const Training& what, const MeshShape& mesh,
                               const Change<double>& change = {}) {
  return near(train_on<double>(mesh, what, change).gradients, train_alone<double>(what).gradients, 1e-11);
}

/// One step, for the first gradients only.
const Training one_step{.steps = 1};

TEST(ModelMutants, TheRightOneIsAccepted) {
  EXPECT_TRUE(right(one_step, ring_of_four));
  EXPECT_TRUE(right(one_step, {2, 1, 2, 2}));
}

/// The gradients of the whole model when rank r divides its loss by divisor(labels of the rank, labels of all).
Named gradients_with(const MeshShape& mesh, const Training& what, double (*divisor)(double, double, int)) {
  std::vector<Trained> ranks(static_cast<std::size_t>(mesh.ranks()));
  LoopbackWorld world(mesh.ranks(), {}, std::chrono::seconds(20));
  world.run([&](int rank) {
    const ModelLinks links = loopback_links(world, rank, mesh, what.shape);
    Transformer<double> model(what.shape, rank_context<double>(links, what.kind, what.seq, what.batch), 5);
    const Examples own =
        examples(RandomTask(what.seq), links.mesh.sequences(what.batch), model.rank_context().tokens);
    const double mine = static_cast<double>(own.labels()), all = model.labels_of_all(own);
    (void)model.differentiate(own, divisor(mine, all, mesh.ranks()));
    ranks[static_cast<std::size_t>(rank)].gradients = named(model.weights(), what.shape, true);
  });
  return merged(ranks, &Trained::gradients, what.shape, mesh.tensor);
}

// The mean of the ranks' means is right only when all ranks have equally many labels.
TEST(ModelMutants, MeanOfMeans) {
  const auto mean_of_means = [](double mine, double, int ranks) { return mine * ranks; };
  const auto global = [](double, double all, int) { return all; };
  const Named want = train_alone<double>(one_step).gradients;
  EXPECT_TRUE(near(gradients_with(ring_of_four, one_step, global), want, 1e-11));
  EXPECT_FALSE(near(gradients_with(ring_of_four, one_step, mean_of_means), want, 1e-2));
}

// The clip hides it: a gradient that is N times too large trains almost as well.
TEST(ModelMutants, TimesRanks) {
  const auto times_ranks = [](double, double all, int ranks) { return all / ranks; };
  const Named want = train_alone<double>(one_step).gradients;
  EXPECT_FALSE(near(gradients_with(ring_of_four, one_step, times_ranks), want, 1e-2));
}

// Positions of the shard instead of the sequence. Contiguous shards: scores inside a shard stay right, for they depend on
// distances; so a test on one rank passes.
TEST(ModelMutants, LocalRotaryPositions) {
  // The tokens of the examples are right; only the layers get the local positions.
  const auto run = [](const MeshShape& mesh, bool local) {
    std::vector<Trained> ranks(static_cast<std::size_t>(mesh.ranks()));
    LoopbackWorld world(mesh.ranks(), {}, std::chrono::seconds(20));
    world.run([&](int rank) {
      const ModelLinks links = loopback_links(world, rank, mesh, one_step.shape);
      RankContext<double> place =
          rank_context<double>(links, PlacementKind::contiguous, one_step.seq, one_step.batch);
      const Examples own = examples(RandomTask(one_step.seq), {0, one_step.batch}, place.tokens);
      if (local) place.tokens = whole(count(place.tokens));
      Transformer<double> model(one_step.shape, std::move(place), 5);
      (void)model.differentiate(own);
      ranks[static_cast<std::size_t>(rank)].gradients = named(model.weights(), one_step.shape, true);
    });
    return merged(ranks, &Trained::gradients, one_step.shape, 1);
  };
  const Named want = train_alone<double>(one_step).gradients;
  EXPECT_TRUE(near(run(ring_of_four, false), want, 1e-11));
  EXPECT_TRUE(near(run({}, true), want, 1e-11)) << "one rank cannot tell";
  EXPECT_FALSE(near(run(ring_of_four, true), want, 1e-3));
}

// The token before is taken from the memory of the shard, not from the sequence.
TEST(ModelMutants, TheTokenBeforeInsideAShard) {
  for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::striped}) {
    Training what = one_step;
    what.kind = kind;
    const auto gradients = [&](bool inside) {
      std::vector<Trained> ranks(4);
      LoopbackWorld world(4, {}, std::chrono::seconds(20));
      world.run([&](int rank) {
        const ModelLinks links = loopback_links(world, rank, ring_of_four, what.shape);
        Transformer<double> model(what.shape, rank_context<double>(links, kind, what.seq, what.batch), 5);
        Examples own = examples(RandomTask(what.seq), {0, what.batch}, model.rank_context().tokens);
        for (std::size_t i = 0; inside && i < own.token.size(); ++i)
          own.previous[i] = i % static_cast<std::size_t>(own.tokens) > 0 ? own.token[i - 1] : Task::none;
        (void)model.differentiate(own);
        ranks[static_cast<std::size_t>(rank)].gradients = named(model.weights(), what.shape, true);
      });
      return merged(ranks, &Trained::gradients, what.shape, 1);
    };
    const Named want = train_alone<double>(what).gradients;
    EXPECT_TRUE(near(gradients(false), want, 1e-11));
    EXPECT_FALSE(near(gradients(true), want, 1e-3)) << name(kind);
  }
}

// Each rank saw its own tokens only, also those of one sequence. With data parallelism alone the mutant is right.
TEST(ModelMutants, WeightGradientsOverDataRanksOnly) {
  const Change<double> data_only = [](RankContext<double>& place, const ModelLinks& links) {
    place.replicas = links.links->group(links.mesh.data());
  };
  EXPECT_FALSE(near(train_on<double>({1, 1, 2, 2}, one_step, data_only).gradients,
                    train_alone<double>(one_step).gradients, 1e-2));
  EXPECT_TRUE(right(one_step, {1, 1, 1, 4}, data_only)) << "without a ring it is right";
}

// With four tensor ranks each K,V head has one owner, so only eight ranks tell.
TEST(ModelMutants, ReplicatedKvHeadsNotSummed) {
  const Change<double> not_summed = [](RankContext<double>& place, const ModelLinks&) {
    place.kv_replicas = std::make_shared<OneRank>();
  };
  EXPECT_TRUE(right(one_step, {4, 1, 1, 1}, not_summed)) << "no K,V head has a replica";
  EXPECT_FALSE(right(one_step, {8, 1, 1, 1}, not_summed));
}

// Every tensor rank has the whole gradient of a norm already.
TEST(ModelMutants, NormGradientTwice) {
  const MeshShape mesh{2, 1, 2, 1};
  Named twice = train_on<double>(mesh, one_step).gradients;
  EXPECT_TRUE(near(twice, train_alone<double>(one_step).gradients, 1e-11));
  for (double& number : twice.at("array 0 norm_1").view().elements())
    number *= mesh.tensor;  // what a sum would give
  EXPECT_FALSE(near(twice, train_alone<double>(one_step).gradients, 0.5));
}

// The partial outputs of wo and w2, and gradients before the norms, need the sum over the tensor ranks.
TEST(ModelMutants, TensorPartsNotSummed) {
  const Change<double> not_summed = [](RankContext<double>& place, const ModelLinks& links) {
    struct Silent : AllToAllAdapter {  // returns what the rank sent to itself
      using AllToAllAdapter::AllToAllAdapter;
      void all_to_all(const Pieces& pieces) override {
        const auto at = static_cast<std::size_t>(rank());
        std::ranges::copy(pieces.send[at], pieces.receive[at].begin());
      }
    };
    place.tensor = std::make_shared<Silent>(*links.tensor);
  };
  EXPECT_FALSE(right(one_step, {2, 1, 1, 1}, not_summed));
}

/// Norm of the gradient when parameters that several tensor ranks have count on each of them.
TEST(ModelMutants, GradientNormCountsReplicasTwice) {
  const auto norm_on = [](const MeshShape& mesh, bool all_count) {
    double norm = 0;
    LoopbackWorld world(mesh.ranks(), {}, std::chrono::seconds(20));
    world.run([&](int rank) {
      const ModelLinks links = loopback_links(world, rank, mesh, one_step.shape);
      const RankContext<double> place =
          rank_context<double>(links, one_step.kind, one_step.seq, one_step.batch);
      Transformer<double> model(one_step.shape, place, 5);
      (void)model.differentiate(
          examples(RandomTask(one_step.seq), links.mesh.sequences(one_step.batch), place.tokens));
      std::vector<ParameterLayout> counted;
      for (const ParameterLayout& layout : model.weights().layouts()) {
        std::vector<Parameter> parameters = layout.parameters();
        for (Parameter& parameter : parameters) parameter.counts = parameter.counts || all_count;
        counted.emplace_back(parameters);
      }
      Weights<double> weights(counted, place.replicas, Sharding::none);
      for (std::size_t array = 0; array < weights.arrays(); ++array)
        std::ranges::copy(model.weights().gradients(array), weights.gradients(array).begin());
      const double own = gradient_norm(weights, *place.tensor);
      if (rank == 0) norm = own;
    });
    return norm;
  };
  const double want = train_alone<double>(one_step).steps[0].gradient_norm;
  EXPECT_NEAR(norm_on({2, 1, 2, 1}, false), want, 1e-11 * want);
  EXPECT_GT(norm_on({2, 1, 2, 1}, true), 1.01 * want);
  EXPECT_NEAR(norm_on({1, 1, 4, 1}, true), want, 1e-11 * want) << "without tensor parallelism it is right";
}

/// A group whose all_gathers_kv return what the first of each length returned: weights that were not fetched again.
struct StaleGroup : AllToAllAdapter {
  using AllToAllAdapter::AllToAllAdapter;
  std::map<std::size_t, std::vector<std::vector<std::byte>>> first;

  void all_to_all(const Pieces& pieces) override {
    AllToAllAdapter::all_to_all(pieces);
    const auto own = static_cast<std::size_t>(rank());
    if (!pieces.send[own].empty() || pieces.receive[own == 0 ? 1 : 0].size() < 64)
      return;  // no gather of weights
    std::vector<std::vector<std::byte>>& kept = first[pieces.receive[own == 0 ? 1 : 0].size()];
    if (kept.empty())
      for (const auto piece : pieces.receive) kept.emplace_back(piece.begin(), piece.end());
    for (std::size_t rank = 0; rank < kept.size(); ++rank)
      std::ranges::copy(kept[rank], pieces.receive[rank].begin());
  }
};

// The first step is right: the gathered weights are still those of the start.
TEST(ModelMutants, StaleGatheredWeights) {
  Training what{.steps = 3, .sharding = Sharding::fsdp};
  what.shape.layers = 1;
  const MeshShape mesh{1, 1, 1, 2};
  const Change<double> stale = [](RankContext<double>& place, const ModelLinks& links) {
    place.replicas = std::make_shared<StaleGroup>(*links.replicas);
  };
  const auto norm = [](const Trained& trained, std::size_t step) {
    return trained.steps[step].gradient_norm;
  };
  const Trained want = train_alone<double>(what), got = train_on<double>(mesh, what, stale),
                right = train_on<double>(mesh, what);
  EXPECT_NEAR(norm(got, 0), norm(want, 0), 1e-11 * norm(want, 0)) << "the first step cannot tell";
  EXPECT_NEAR(norm(right, 2), norm(want, 2), 1e-9 * norm(want, 2));
  EXPECT_GT(std::abs(norm(got, 2) - norm(want, 2)), 1e-3 * norm(want, 2));
}

}  // namespace
}  // namespace ring_attention::test
