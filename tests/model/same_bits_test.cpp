// Training with the same bits on every mesh of ring and data ranks.

#include "model/model_runs.hpp"
#include "ring_attention/core/random.hpp"
#include "support/input_error.hpp"

namespace ring_attention::test {
namespace {

constexpr MeshShape one{1, 1, 1, 1};
constexpr MeshShape some_meshes[] = {{1, 1, 2, 1}, {1, 1, 1, 2}, {1, 1, 3, 1}, {1, 1, 2, 2},
                                     {1, 1, 1, 5}, {1, 1, 3, 2}, {1, 1, 7, 1}};

/// 19 tokens are five tiles, the last of three tokens.
Training in_tiles(Index tile = 4) { return {.steps = 3, .cpu = {.same_bits = tile}}; }

TEST(ModelSameBits, EveryMeshOfRingAndData) {
  Training what = in_tiles();
  const Trained want = train_on<float>(one, what);
  std::size_t turn = 0;
  for (const MeshShape& mesh : some_meshes) {
    what.kind =
        std::array{PlacementKind::zigzag, PlacementKind::contiguous, PlacementKind::striped}[++turn % 3];
    what.context = turn % 2 == 0 ? ContextKind::hybrid : ContextKind::all_gather;
    what.chunk = static_cast<Index>(turn);
    what.cpu.threads = turn % 2 == 0 ? 1 : 2;
    SCOPED_TRACE(to_string(mesh) + ", " + name(what.kind));
    EXPECT_TRUE(same_bits(train_on<float>(mesh, what), want));
  }
}

TEST(ModelSameBits, WithDropout) {
  Training what = in_tiles(7);
  what.dropout = {.probability = 0.2, .seed = 9};
  const Trained want = train_on<float>(one, what);
  for (const MeshShape& mesh : {MeshShape{1, 1, 2, 2}, MeshShape{1, 1, 3, 1}})
    EXPECT_TRUE(same_bits(train_on<float>(mesh, what), want)) << to_string(mesh);
}

// Each tile adds two terms to a row of the embedding's gradient: more than a narrow sum takes.
TEST(ModelSameBits, FiveHundredTilesAndMore) {
  for (const Index batch : {16, 32}) {
    Training what = in_tiles(1);
    what.seq = 32;
    what.batch = batch;
    what.steps = 1;
    const Trained want = train_on<float>(one, what);
    EXPECT_TRUE(same_bits(train_on<float>({1, 1, 2, 2}, what), want));
    EXPECT_TRUE(near(want.gradients, train_alone<double>(what).gradients, 1e-4));
  }
}

// All labels of a tile are one term.
TEST(ModelSameBits, ALargeTile) {
  Training what = in_tiles(1000);
  what.seq = 2100;
  what.batch = 1;
  what.steps = 1;
  EXPECT_TRUE(same_bits(train_on<float>({1, 1, 3, 1}, what), train_on<float>(one, what)));
}

// A model that is sure has losses near 1e-6, and of 15 where it is wrong: their sum may need more bits than a double has.
TEST(ModelSameBits, TheLossHasNoOrder) {
  const ModelShape shape = small_shape();
  const ParameterLayout layout = embedding_layout(shape, TensorPart(shape, 0, 1));
  Tensor<float> flat({1, 1, 1, layout.size()});
  const EmbeddingParameters<float> all(layout, flat.view().elements());
  std::ranges::fill(all.norm.elements(), 1.0F);
  for (Index answer = 0; answer < shape.classes; ++answer)
    all.embedding(0, 0, shape.first_class + answer, 0) = answer == 0 ? 1e-7F : -15.0F;
  const EmbeddingParameters<const float> weights(layout, std::as_const(flat).view().elements());
  Tensor<float> x({1, 1, 4000, shape.width});
  fill_random(x.view(), {.seed = 3});
  for (Index row = 0; row < 4000; ++row) x.view()(0, 0, row, 0) = 8;
  const auto loss = [&](Index begin, Index end, const RowTiles& tiles) {
    const View<const float> rows(x.data() + begin * shape.width, {1, 1, end - begin, shape.width});
    return answer<float>(shape, weights, examples(RandomTask(4000), {0, 1}, {{begin, 1, end - begin}}), rows,
                         tiles)
        .loss;
  };
  const auto has_no_order = [&](auto tiles) {
    double sum = 0;
    for (Index end = 4000; end > 0; end -= 1000) sum += loss(end - 1000, end, tiles(end - 1000, 1000));
    return sum == loss(0, 4000, tiles(0, 4000));
  };
  EXPECT_TRUE(has_no_order(
      [](Index begin, Index count) { return RowTiles(best_isa(), {{begin, 1, count}}, Tiling(50), 80); }));
  EXPECT_FALSE(has_no_order([](Index, Index) { return RowTiles(); }));
}

TEST(ModelSameBits, TheNumbersAreThoseOfDouble) {
  Training what = in_tiles();
  what.steps = 1;
  const Trained got = train_on<float>({1, 1, 3, 2}, what), usual = train_alone<float>(what),
                want = train_alone<double>(what);
  EXPECT_TRUE(near(got.gradients, want.gradients, 1e-5));
  EXPECT_TRUE(near(usual.gradients, want.gradients, 1e-5));
  EXPECT_TRUE(std::abs(got.steps[0].score.loss - want.steps[0].score.loss) <=
              1e-6 * want.steps[0].score.loss);
  EXPECT_TRUE(std::abs(got.steps[0].gradient_norm - want.steps[0].gradient_norm) <=
              1e-5 * want.steps[0].gradient_norm);
}

TEST(ModelSameBits, OnlyRingAndData) {
  const Training what = in_tiles();
  for (const MeshShape& mesh : {MeshShape{2, 1, 1, 1}, MeshShape{1, 2, 1, 1}})
    EXPECT_NE(
        input_error([&] { (void)train_on<float>(mesh, what); }).find("use ranks along ring and data only"),
        std::string::npos);
}

}  // namespace
}  // namespace ring_attention::test
