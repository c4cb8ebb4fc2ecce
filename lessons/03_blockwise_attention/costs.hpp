// Lesson 03, beside the idea: dense attention, and what both methods cost.
#pragma once

#include <chrono>

#include "cli/median.hpp"
#include "common/lesson.hpp"
#include "common/random_problem.hpp"
#include "ring_attention/attention/softmax.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/core/eigen.hpp"

namespace ring_attention::costs {

using FloatView = View<const float>;
// The method of this lesson, with a block.
using Tiled = AttentionResult<float> (*)(const FloatView& q, const FloatView& k, const FloatView& v,
                                         const Scoring& scoring, Index block);

// The previous method: all scores at once, then lesson 01 on every row.
inline Tensor<float> dense_attention(const FloatView& q, const FloatView& k, const FloatView& v,
                                     const Scoring& scoring) {
  Tensor<float> out(q.shape()), scores(Shape{1, 1, q.shape().seq, q.shape().seq});
  auto s = matrix(scores.view(), 0, 0);
  s.noalias() = matrix(q, 0, 0) * matrix(k, 0, 0).transpose();
  s *= static_cast<float>(scoring.scale);
  for (Index i = 0; i < s.rows(); ++i) {
    for (Index j = 0; j < s.cols(); ++j)
      if (!scoring.mask.allowed(i, j)) s(i, j) = negative_infinity<float>;
    const float m = s.row(i).maxCoeff();
    s.row(i) = s.row(i).unaryExpr([m](float x) { return std::exp(x - m); });
    s.row(i) /= s.row(i).sum();
  }
  matrix(out.view(), 0, 0).noalias() = s * matrix(v, 0, 0);
  return out;
}

// q, k, v of one head.
struct Head {
  Head(const RandomProblem& p)
      : q(p.queries<float>(whole(p.q.seq))), k(p.keys<float>()), v(p.values<float>()) {}
  Tensor<float> q, k, v;
};
inline RandomProblem problem_of(std::uint64_t seed, Index seq, Index dim, Index spike_every = 0) {
  return {{1, 1, seq, dim}, {1, 1, seq, dim}, {default_scale(dim), Mask::causal()}, seed, spike_every};
}

// The most bytes that `work` held in tensors at a time, its result included.
Index peak_bytes(auto work) {
  const Index before = allocation::current();
  allocation::reset_peak();
  const auto result = work();
  return allocation::peak() - before;
}

// Bytes in tensors, dense and tiled: measured up to S = 2048, beyond that by the formulas that were measured.
inline void show_memory(Lesson& lesson, Index dim, Index block, Tiled blockwise_attention) {
  const Index e = sizeof(float), tile = e * (block * block + block * dim + 2 * block);
  Table table({"S", "", "dense scores", "o, m, l of q", "one tile", "dense / tiled"});
  bool agrees = true;
  for (const Index seq : {256, 512, 1024, 2048, 16384, 131072}) {
    const Index dense = e * seq * seq, state = e * seq * (dim + 2);
    const bool measured = seq <= 2048;
    if (measured) {
      const RandomProblem problem = problem_of(lesson.seed(), seq, dim);
      const Head h(problem);
      const auto dense_range = [&] { return dense_attention(h.q, h.k, h.v, problem.scoring); };
      const auto tiled_range = [&] { return blockwise_attention(h.q, h.k, h.v, problem.scoring, block); };
      agrees = agrees && peak_bytes(dense_range) == dense + e * seq * dim &&
               peak_bytes(tiled_range) == state + tile;
    }
    table.row({std::to_string(seq), measured ? "measured" : "formula", human_bytes(dense), human_bytes(state),
               human_bytes(tile),
               format("%.1f", static_cast<double>(dense) / static_cast<double>(state + tile))});
  }
  lesson.print("memory", table);
  lesson.check("measured: dense 4 S S + 4 S D, tiled 4 S (D + 2) + 4 block (block + D + 2) bytes", agrees);
}

double median_seconds(auto work) {
  std::vector<double> seconds(5);
  for (double& each : seconds) {
    const auto begin = std::chrono::steady_clock::now();
    const auto result = work();
    each = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return median(seconds);
}

inline void show_time(Lesson& lesson, Index dim, Index block, Tiled blockwise_attention) {
  const RandomProblem problem = problem_of(lesson.seed(), 1024, dim);
  const Head h(problem);
  const double dense = median_seconds([&] { return dense_attention(h.q, h.k, h.v, problem.scoring); });
  const double tiled =
      median_seconds([&] { return blockwise_attention(h.q, h.k, h.v, problem.scoring, block); });
  lesson.say(format("  S = 1024, median of 5, this run: dense %s, tiled %s, ratio %.2f",
                    human_seconds(dense).c_str(), human_seconds(tiled).c_str(), tiled / dense));
}

}  // namespace ring_attention::costs
