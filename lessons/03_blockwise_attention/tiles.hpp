// Lesson 03: which tiles a causal mask leaves, and what a masked tile does.
#pragma once

#include LESSON_IDEA

#include "costs.hpp"

namespace ring_attention::lesson {

using costs::Head;

// Which tiles a causal mask leaves: 2 full, 1 partly masked, 0 skipped. Rows are tiles of queries.
inline void show_tiles(Lesson& lesson, Index seq, Index block) {
  std::array<Index, 3> tiles{};
  const Index n = (seq + block - 1) / block;
  for (Index i = 0; i < seq; i += block) {
    std::string line = "  ";
    for (Index j = 0; j < seq; j += block) {
      const Coverage coverage =
          Mask::causal().coverage({i, 1, std::min(block, seq - i)}, {j, 1, std::min(block, seq - j)});
      const std::size_t kind = coverage == Coverage::none ? 0 : coverage == Coverage::partial ? 1 : 2;
      ++tiles[kind];
      line += std::array{" .", " /", " #"}[kind];
    }
    lesson.say(line);
  }
  lesson.check("the causal mask skips n (n - 1) / 2 of n^2 tiles", tiles[0] == n * (n - 1) / 2,
               std::to_string(tiles[2]) + " full, " + std::to_string(tiles[1]) + " partly masked, " +
                   std::to_string(tiles[0]) + " skipped");
}

// A tile in which a query sees no key has m = -inf, and e^{-inf - (-inf)} is NaN.
inline void show_masked_tiles(Lesson& lesson, const Head& h, const Scoring& scoring, Index block,
                              const Choices& choices) {
  Choices visit_all = choices, unguarded;
  visit_all.skip = [](Coverage) { return false; };
  unguarded.skip = visit_all.skip;
  unguarded.factor = [](float from, float to) { return std::exp(from - to); };
  const AttentionResult<float> broken = blockwise_attention(h.q, h.k, h.v, scoring, block, unguarded);
  const Index lost = count_non_finite(broken.lse.view()).count;
  lesson.say("  no tile skipped, no guard: NaN in " + std::to_string(lost) + " of " +
             std::to_string(h.q.shape().seq) + " rows");
  lesson.say("  (finish() looks for l == 0, but there l is NaN)");
  const AttentionResult<float> skipped = blockwise_attention(h.q, h.k, h.v, scoring, block, choices),
                               visited = blockwise_attention(h.q, h.k, h.v, scoring, block, visit_all);
  lesson.check("no tile skipped, with the guard: a masked tile changes no bit",
               bitwise_equal(skipped.out, visited.out) && bitwise_equal(skipped.lse, visited.lse));
}

}  // namespace ring_attention::lesson
