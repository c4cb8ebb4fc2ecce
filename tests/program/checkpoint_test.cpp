// A training that is saved, and loaded into a model that began with other numbers, goes on with the same bits.
#include "program/train/checkpoint.hpp"

#include <sys/stat.h>

#include <filesystem>

#include "model/model_runs.hpp"
#include "support/ranks_and_files.hpp"

namespace {

/// A file or directory that was synchronised, and whether the checkpoint had its name by then.
struct Synchronised {
  ino_t file;
  bool published;
};
std::vector<Synchronised> synchronised;
std::string checkpoint_of_three_steps;

ino_t inode(const std::string& path) {
  struct stat status = {};
  return stat(path.c_str(), &status) == 0 ? status.st_ino : 0;
}

}  // namespace

/// In place of the system's, to see the calls. It waits for nothing.
extern "C" int fsync(int file) {
  struct stat status = {};
  if (fstat(file, &status) != 0) return -1;
  synchronised.push_back({status.st_ino, std::filesystem::exists(checkpoint_of_three_steps)});
  return 0;
}

namespace ring_attention::test {
namespace {

class CheckpointTest : public RanksAndFiles {
 protected:
  CheckpointTest() { options_.checkpoint = at("checkpoints"); }

  TrainOptions options_;
  const Curve curve_{{0, 9, 1.5, 0.25}, {1, 9, 1.25, 0.5}, {2, 9, 0.75, 0.625}};
};

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
  Trainee saved(comm_, 1), loaded(comm_, 2);
  for (std::size_t i = 0; i < curve_.size(); ++i) (void)saved.step();
  Checkpoints(comm_, options_).save(saved.model, saved.adam, curve_);
  EXPECT_NE(loaded.numbers(), saved.numbers());

  const Curve got = Checkpoints(comm_, options_).load(loaded.model, loaded.adam);
  EXPECT_EQ(got.size(), curve_.size());
  for (std::size_t i = 0; i < std::min(got.size(), curve_.size()); ++i)
    EXPECT_EQ(std::tuple(got[i].step, got[i].length, got[i].loss, got[i].accuracy),
              std::tuple(curve_[i].step, curve_[i].length, curve_[i].loss, curve_[i].accuracy));
  EXPECT_EQ(loaded.adam.steps(), 3);
  EXPECT_EQ(loaded.numbers(), saved.numbers());
  EXPECT_EQ(loaded.step().score.loss, saved.step().score.loss);
  EXPECT_EQ(loaded.numbers(), saved.numbers());
}

// A checkpoint is complete or not there, also after a power cut: what is in it is on the disk before it gets its name,
// and so is the directory with the name before the checkpoint before it is removed.
TEST_F(CheckpointTest, IsOnTheDiskBeforeItHasItsNameAndSoIsTheName) {
  Trainee saved(comm_, 1);
  for (std::size_t i = 0; i < curve_.size(); ++i) (void)saved.step();
  checkpoint_of_three_steps = at("checkpoints/step_3");
  synchronised.clear();
  Checkpoints(comm_, options_).save(saved.model, saved.adam, curve_);
  if (comm_.rank() != 0) return;  // rank 0 publishes
  const auto was_synchronised = [](const std::string& path, bool published) {
    return std::ranges::any_of(synchronised, [&](const Synchronised& call) {
      return call.file == inode(path) && call.published == published;
    });
  };
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint_of_three_steps)) {
    EXPECT_TRUE(was_synchronised(entry.path(), false)) << entry.path();
    ++files;
  }
  EXPECT_EQ(files, 4);
  EXPECT_TRUE(was_synchronised(checkpoint_of_three_steps, false));
  EXPECT_TRUE(was_synchronised(options_.checkpoint, true)) << "the directory, after the rename";
}

TEST_F(CheckpointTest, ACurveHasAPointForEachStep) {
  Trainee saved(comm_, 1);
  for (std::size_t i = 0; i < curve_.size(); ++i) (void)saved.step();
  Checkpoints(comm_, options_).save(saved.model, saved.adam, curve_);
  const std::string file = "checkpoints/step_3/checkpoint.json", three = "\n \"steps\": 3,";
  for (const char* other : {"\n \"steps\": 4,", "\n \"steps\": 2,"}) {
    std::string text = contents(file);
    wait();
    const std::size_t steps = text.find(three);
    ASSERT_NE(steps, std::string::npos);  // on all ranks
    put(file, std::string(text).replace(steps, three.size(), other));
    const std::string message =
        agreed_error([&] { (void)Checkpoints(comm_, options_).load(saved.model, saved.adam); });
    EXPECT_NE(message.find("has a curve of another number of steps"), std::string::npos) << message;
    put(file, text);
  }
}

}  // namespace
}  // namespace ring_attention::test
