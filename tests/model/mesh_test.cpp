// A model on every mesh: the numbers of one process; with FSDP the bits of the mesh without.
//
// RING_ATTENTION_STEPS=n  steps of each training on every mesh (default 2)

#include "model/model_runs.hpp"
#include "support/cases.hpp"
#include "support/input_error.hpp"

namespace ring_attention::test {
namespace {

/// All meshes of at most `ranks` ranks that share 8 query heads and 4 KV heads.
std::vector<MeshShape> meshes(int ranks) {
  std::vector<MeshShape> all;
  for (const int tensor : {1, 2, 4, 8})
    for (const int ulysses : {1, 2, 4, 8})
      for (int ring = 1; ring <= ranks; ++ring)
        for (int data = 1; data <= ranks; ++data)
          if (const MeshShape mesh{tensor, ulysses, ring, data};
              tensor * ulysses <= 8 && mesh.ranks() <= ranks)
            all.push_back(mesh);
  return all;
}

void expect_like_one_process(const Trained& got, const Trained& want) {
  EXPECT_EQ(got.labels_of_ranks, want.labels_of_ranks);
  for (std::size_t step = 0; step < want.steps.size(); ++step) {
    const StepReport &a = got.steps[step], &b = want.steps[step];
    const double tolerance = step == 0 ? 1e-12 : 1e-9;  // later steps start from other weights
    EXPECT_TRUE(std::abs(a.score.loss - b.score.loss) <= tolerance * b.score.loss);
    EXPECT_TRUE(std::abs(a.gradient_norm - b.gradient_norm) <= (step == 0 ? 1e-11 : 1e-9) * b.gradient_norm);
    EXPECT_EQ(a.score.labels, b.score.labels);
    EXPECT_EQ(a.score.correct, b.score.correct);
  }
  EXPECT_TRUE(near(got.gradients, want.gradients, 1e-11));
  EXPECT_TRUE(near(got.weights, want.weights, 1e-9));
}

TEST(ModelMesh, EveryMeshHasTheNumbersOfOneProcess) {
  Training what{.steps = from_environment("RING_ATTENTION_STEPS", 2)};
  const Trained want = train_alone<double>(what);
  std::size_t turn = 0;
  for (const MeshShape& mesh : meshes(8)) {
    what.kind =
        std::array{PlacementKind::zigzag, PlacementKind::contiguous, PlacementKind::striped}[++turn % 3];
    what.sharding = turn % 2 == 0 ? Sharding::none : Sharding::fsdp;
    SCOPED_TRACE(to_string(mesh) + ", " + name(what.kind));
    expect_like_one_process(train_on<double>(mesh, what), want);
  }
}

// The first steps have a small rate: ten show more of what rounding becomes.
TEST(ModelMesh, TenStepsOnSomeMeshes) {
  Training what;
  const Trained want = train_alone<double>(what);
  for (const MeshShape& mesh : {MeshShape{2, 2, 2, 1}, MeshShape{1, 1, 3, 2}, MeshShape{8, 1, 1, 1}}) {
    SCOPED_TRACE(to_string(mesh));
    expect_like_one_process(train_on<double>(mesh, what), want);
  }
}

TEST(ModelMesh, WithDropout) {
  Training what{.steps = 2, .dropout = {.probability = 0.2, .seed = 9}};
  const Trained want = train_alone<double>(what);
  for (const MeshShape& mesh : {MeshShape{2, 2, 1, 2}, MeshShape{1, 2, 3, 1}, MeshShape{8, 1, 1, 1}}) {
    SCOPED_TRACE(to_string(mesh));
    expect_like_one_process(train_on<double>(mesh, what), want);
  }
}

TEST(ModelMesh, FsdpHasTheSameBits) {
  for (const MeshShape& mesh :
       {MeshShape{1, 1, 1, 3}, MeshShape{2, 1, 2, 2}, MeshShape{1, 2, 2, 1}, MeshShape{8}}) {
    SCOPED_TRACE(to_string(mesh));
    Training what{.steps = from_environment("RING_ATTENTION_STEPS", 3)};
    const Trained plain = train_on<double>(mesh, what);
    what.sharding = Sharding::fsdp;
    EXPECT_TRUE(same_bits(train_on<double>(mesh, what), plain));
  }
}

TEST(ModelMesh, AllGatherHasTheBitsOfTheRing) {
  for (const MeshShape& mesh : {MeshShape{1, 1, 3, 1}, MeshShape{2, 1, 2, 2}}) {
    SCOPED_TRACE(to_string(mesh));
    Training what{.steps = 3};
    const Trained ring = train_on<double>(mesh, what);
    what.context = ContextKind::all_gather;
    EXPECT_TRUE(same_bits(train_on<double>(mesh, what), ring));
  }
}

// More ranks than tokens, and batches that do not divide.
TEST(ModelMesh, RanksWithoutTokens) {
  Training what{.seq = 5, .batch = 5, .steps = 2, .kind = PlacementKind::contiguous};
  const Trained want = train_alone<double>(what);
  for (const MeshShape& mesh :
       {MeshShape{1, 1, 8, 1}, MeshShape{1, 2, 2, 2}, MeshShape{1, 8, 1, 1}, MeshShape{1, 1, 2, 3}}) {
    SCOPED_TRACE(to_string(mesh));
    expect_like_one_process(train_on<double>(mesh, what), want);
  }
}

TEST(ModelMesh, FloatIsDeterministic) {
  const Training what{.steps = 3};
  const MeshShape mesh{2, 2, 2, 1};
  EXPECT_TRUE(same_bits(train_on<float>(mesh, what), train_on<float>(mesh, what)));
}

TEST(ModelMesh, AMeshThatCannotShareNamesMeshesThatCan) {
  const auto message = [](const MeshShape& mesh, Index batch) {
    return input_error([&] { require_shareable(small_shape(), mesh, batch); });
  };
  const std::string refused =
      "8 query heads and 4 KV heads cannot be shared like this: use tensor x ulysses = ";
  EXPECT_EQ(message({3, 1, 1, 1}, 8), "mesh tensor 3, ulysses 1, ring 1, data 1: " + refused + "1 x 1");
  EXPECT_EQ(message({4, 4, 1, 1}, 8),
            "mesh tensor 4, ulysses 4, ring 1, data 1: " + refused +
                "1 x 1, 1 x 2, 1 x 4, 1 x 8, 2 x 1, 2 x 2, 2 x 4, 4 x 1, 4 x 2, 8 x 1");
  EXPECT_EQ(message({1, 1, 1, 4}, 3),
            "mesh tensor 1, ulysses 1, ring 1, data 4: a batch of 3 sequences for 4 ranks: use at most 3 on "
            "the data axis");
  for (const MeshShape& mesh : meshes(8)) EXPECT_NO_THROW(require_shareable(small_shape(), mesh, 8));
}

TEST(ModelMesh, AllGatherNeedsAllHeadsOnARank) {
  Training what{.steps = 1, .context = ContextKind::all_gather};
  EXPECT_THROW((void)train_on<double>({1, 2, 1, 1}, what), InputError);
}

}  // namespace
}  // namespace ring_attention::test
