// A training that is saved, and loaded into a model that began with other numbers, goes on with the same bits.
#include "program/train/checkpoint.hpp"

#include "model/model_runs.hpp"
#include "support/ranks_and_files.hpp"

namespace ring_attention::test {
namespace {

class CheckpointTest : public RanksAndFiles {};

/// A model and its optimiser on all ranks, each with its part of the numbers.
struct Trainee {
  Trainee(const Communicator& comm, std::uint64_t seed)
      : place(rank_context<float>(mpi_links(comm, {1, 1, comm.size(), 1}, small_shape()),
                                  PlacementKind::zigzag, 9, 2)),
        model(small_shape(), place, seed, Sharding::fsdp),
        adam(model.weights()) {}

  StepReport step() {
    return train_step(model, adam, small_recipe(), examples(RandomTask(9), {0, 2}, place.tokens));
  }
  std::vector<float> numbers() {
    std::vector<float> all;
    for (std::size_t array = 0; array < model.weights().arrays(); ++array)
      for (const std::span<const float> part :
           {std::span<const float>(model.weights().values(array)), std::span<const float>(adam.first(array)),
            std::span<const float>(adam.second(array))})
        all.insert(all.end(), part.begin(), part.end());
    return all;
  }

  RankContext<float> place;
  Transformer<float> model;
  AdamW<float> adam;
};

TEST_F(CheckpointTest, ALoadedTrainingGoesOnWithTheSameBits) {
  TrainOptions options;
  options.checkpoint = at("checkpoints");
  const Curve curve{{0, 9, 1.5, 0.25}, {1, 9, 1.25, 0.5}, {2, 9, 0.75, 0.625}};
  Trainee saved(comm_, 1), loaded(comm_, 2);
  for (std::size_t i = 0; i < curve.size(); ++i) (void)saved.step();
  Checkpoints(comm_, options).save(saved.model, saved.adam, curve);
  EXPECT_NE(loaded.numbers(), saved.numbers());

  const Curve got = Checkpoints(comm_, options).load(loaded.model, loaded.adam);
  EXPECT_EQ(got.size(), curve.size());
  for (std::size_t i = 0; i < std::min(got.size(), curve.size()); ++i)
    EXPECT_EQ(std::tuple(got[i].step, got[i].length, got[i].loss, got[i].accuracy),
              std::tuple(curve[i].step, curve[i].length, curve[i].loss, curve[i].accuracy));
  EXPECT_EQ(loaded.adam.steps(), 3);
  EXPECT_EQ(loaded.numbers(), saved.numbers());
  EXPECT_EQ(loaded.step().score.loss, saved.step().score.loss);
  EXPECT_EQ(loaded.numbers(), saved.numbers());
}

}  // namespace
}  // namespace ring_attention::test
