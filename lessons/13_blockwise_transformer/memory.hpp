// Lesson 13, beside the idea: bytes of one layer in four ways, and of a training step when ranks and length grow
// together. The ranks are threads of this process: the counter of tensors counts each of them by itself.
#pragma once

#include <numeric>

#include "14_planning/published/paper.hpp"
#include "common/problem.hpp"
#include "model/adamw.hpp"
#include "model/layer.hpp"
#include "model/products.hpp"
#include "part.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::lesson_13 {

/// Attention with all scores in memory.
class DenseAttention : public OneDevice<float> {
 public:
  [[nodiscard]] AttentionResult<float> forward(View<const float> q, View<const float> k, View<const float> v,
                                               const Scoring& scoring) override {
    const Shape& s = q.shape();
    AttentionResult<float> result{Tensor<float>(s), Tensor<float>(s.per_row())};
    Tensor<float> scores({s.batch, s.heads, s.seq, s.seq});
    const auto head = [](const auto& all, Index h) {
      return std::remove_cvref_t<decltype(all)>(all.head(0, h), {1, 1, all.shape().seq, all.shape().dim});
    };
    for (Index h = 0; h < s.heads; ++h) {
      const View<float> p = head(scores.view(), h);
      add_input_gradient(head(q, h), head(k, h), p);  // q k^T
      for (Index i = 0; i < s.seq; ++i) {
        const std::span<float> row = p.row(0, 0, i),
                               seen = row.first(static_cast<std::size_t>(i + 1));  // causal
        for (float& score : seen) score *= static_cast<float>(scoring.scale);
        const float m = std::ranges::max(seen);
        for (float& score : seen) score = std::exp(score - m);
        const float l = std::accumulate(seen.begin(), seen.end(), 0.0F);
        for (float& score : seen) score /= l;
        std::ranges::fill(row.subspan(seen.size()), 0.0F);
        result.lse.view()(0, h, i) = m + std::log(l);
      }
      multiply<float>(p, head(v, h), head(result.out.view(), h));
    }
    return result;
  }
};

inline ModelShape layer_shape() {
  return {.vocabulary = 8, .classes = 8, .width = 128, .heads = 4, .kv_heads = 4, .dim = 32, .hidden = 512};
}

/// The most bytes of this thread during a forward of one layer, its input included, the weights not.
inline Index layer_peak(const RankContext<float>& place, Index chunk) {
  const ModelShape shape = layer_shape();
  const ParameterLayout layout = layer_layout(shape, TensorPart(shape, 0, 1));
  Tensor<float> flat({1, 1, 1, layout.size()});
  initialise(layout, 1, 0, {0, layout.size()}, flat.view().elements());
  const LayerOptions options{shape, {default_scale(shape.dim), Mask::causal()}, chunk};
  const Index before = allocation::current();
  allocation::reset_peak();
  Tensor<float> x({1, 1, count(place.tokens), shape.width}, 1);
  Checkpoint<float> kept;
  (void)layer_forward<float>(options, place, {layout, std::as_const(flat).view().elements()}, std::move(x),
                             kept);
  return allocation::peak() - before;
}

/// The largest of the ranks of a ring.
inline Index largest_of_ring(int ranks, const ModelShape& shape, Index seq, auto peak_of) {
  std::vector<Index> peaks(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    const Mesh mesh(rank, ranks, {1, 1, ranks, 1});
    const ModelLinks links(std::make_shared<PeerLinks>(world.peers(rank), mesh.ulysses(), mesh.ring()), mesh,
                           shape);
    peaks[static_cast<std::size_t>(rank)] =
        peak_of(rank_context<float>(links, PlacementKind::zigzag, seq, 1));
  });
  return *std::ranges::max_element(peaks);
}

inline ModelShape step_shape() {
  ModelShape shape = Setup{}.shape;  // of RandomTask
  shape.layers = 4;
  shape.width = 32;
  shape.heads = shape.kv_heads = 2;
  shape.dim = 16;
  shape.hidden = 128;
  return shape;
}

/// What a training step needs besides the weights and what the optimiser keeps.
inline Index step_peak(int ranks, Index seq) {
  const ModelShape shape = step_shape();
  return largest_of_ring(ranks, shape, seq, [&](RankContext<float> place) {
    const Examples own = examples(RandomTask(1, seq), {0, 1}, place.tokens);
    Transformer<float> model(shape, std::move(place), 1);
    model.set_chunk(16);
    AdamW<float> adam(model.weights());
    const Index before = allocation::current();
    allocation::reset_peak();
    (void)train_step(model, adam, {.steps = 1}, own);
    return allocation::peak() - before;
  });
}

/// Collective: rank 0 measures, with as many threads as a ring has ranks.
inline void show_layer_memory(Lesson& lesson, const Communicator& comm) {
  constexpr Index seq = 1024, chunk = 32;
  constexpr int ranks = 4;
  constexpr Index shard = seq / ranks;
  const ModelShape shape = layer_shape();
  const auto floats = plan::table_1(1, seq, static_cast<double>(shape.width),
                                    static_cast<double>(shape.heads), shard);  // bytes in bf16
  bool falls = true;
  if (comm.rank() == 0) {
    RankContext<float> dense = one_process<float>(seq);
    dense.attention = std::make_shared<DenseAttention>();
    const std::array peaks{layer_peak(dense, seq), layer_peak(one_process<float>(seq), seq),
                           layer_peak(one_process<float>(seq), chunk),
                           largest_of_ring(ranks, shape, seq, [&](const RankContext<float>& place) {
                             return layer_peak(place, chunk);
                           })};
    Table table(
        {"one layer, S = 1024, float", "the paper's table 1", "paper", "measured", "of its s h or c h"});
    const std::array formulas{"b n s^2", "4 b s h", "b s h", "6 b c h, 4 ranks"};
    for (std::size_t i = 0; i < peaks.size(); ++i) {
      const auto tokens = static_cast<double>(i + 1 < peaks.size() ? seq : seq / ranks);
      table.row({floats[i].method, formulas.at(i), human_bytes(static_cast<Index>(2 * floats[i].bytes)),
                 human_bytes(peaks.at(i)),
                 format("%.1f",
                        static_cast<double>(peaks.at(i)) / (4 * tokens * static_cast<double>(shape.width)))});
    }
    lesson.print("layer", table);
    falls = std::ranges::is_sorted(peaks, std::greater<>());
  }
  wait_asleep(comm);
  lesson.check("each method needs less than the one before", falls);
}

/// Collective, as show_layer_memory.
inline void show_step_memory(Lesson& lesson, const Communicator& comm) {
  constexpr Index tokens = 256;
  const ModelShape shape = step_shape();
  const Index shard = 4 * tokens * shape.width,  // bytes of one array of a rank's tokens
      kept = shape.layers * (2 * shard + 4 * tokens * shape.heads);
  std::vector<Index> ring;
  bool flat = true;
  if (comm.rank() == 0) {
    Table table({"4 layers", "tokens", "one rank, all", "a ring's rank", "checkpoints", "paper's 6 b c h",
                 "rest, b c h"});
    for (const Index count : {1, 2, 4, 8}) {
      ring.push_back(step_peak(static_cast<int>(count), tokens * count));
      table.row({counted(count, "rank"), std::to_string(tokens * count),
                 human_bytes(step_peak(1, tokens * count)), human_bytes(ring.back()), human_bytes(kept),
                 human_bytes(6 * shard),
                 format("%.1f", static_cast<double>(ring.back() - kept) / static_cast<double>(shard))});
      flat = flat && (count < 2 || std::abs(ring.back() - ring[1]) * 100 <= ring[1]);
    }
    lesson.print("step", table);
  }
  wait_asleep(comm);
  lesson.check("ranks and length grow together: a rank's memory is flat, within 1 %", flat);
}

}  // namespace ring_attention::lesson_13
