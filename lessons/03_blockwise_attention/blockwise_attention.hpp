/// \file
/// Lesson 03, the idea: attention one tile of scores at a time, with a state (o, m, l) for each query.
#pragma once

#include "ring_attention/attention/partial.hpp"  // Partial {o, m, l}, finish
#include "ring_attention/attention/scoring.hpp"  // Scoring, Coverage
#include "ring_attention/core/eigen.hpp"         // matrix: a head of an array as an Eigen matrix

namespace ring_attention::lesson {

/// What a mutant replaces.
struct Choices {
  bool (*skip)(Coverage) = [](Coverage coverage) { return coverage == Coverage::none; };
  float (*factor)(float from, float to) = rescale<float>;  // lesson 02: e^{from - to}, and 0 from -inf
  bool move_o = true;                                      // o follows the maximum, as l does
};

/// Lesson 01 on a tile: s becomes p = e^{s - m} with the tile's own m, and o = p v is not divided by l.
inline void softmax_of_tile(MatrixMap<float> s, const MatrixMap<const float>& v, Partial<float>& tile,
                            const Choices& choices) {
  for (Index a = 0; a < s.rows(); ++a) {
    float m = negative_infinity<float>, l = 0;
    for (Index b = 0; b < s.cols(); ++b) m = std::max(m, s(a, b));
    for (Index b = 0; b < s.cols(); ++b) {
      s(a, b) = choices.factor(s(a, b), m);
      l += s(a, b);
    }
    tile.m.data()[a] = m;
    tile.l.data()[a] = l;
  }
  matrix(tile.o.view(), 0, 0, 0, s.rows()).noalias() = s * v;
}

/// Lesson 02 on each query: o and l of both are moved to the common maximum and added.
inline void merge_tile(Partial<float>& sum, Index first_query, const Partial<float>& tile, Index queries,
                       const Choices& choices) {
  for (Index a = 0; a < queries; ++a) {
    float &m = sum.m.data()[first_query + a], &l = sum.l.data()[first_query + a];
    const float top = std::max(m, tile.m.data()[a]);
    const float keep = choices.factor(m, top), add = choices.factor(tile.m.data()[a], top);
    const std::span<float> o = sum.o.view().row(0, 0, first_query + a);
    const std::span<const float> tile_o = tile.o.view().row(0, 0, a);
    for (std::size_t d = 0; d < o.size(); ++d) o[d] = (choices.move_o ? keep : 1) * o[d] + add * tile_o[d];
    l = keep * l + add * tile.l.data()[a];
    m = top;
  }
}

/// out = softmax(scale q k^T and mask) v, and lse = m + log l, of one head.
/// Of the S x S scores one tile [block, block] exists at a time.
/// \param q, k, v  [1, 1, S, D]
inline AttentionResult<float> blockwise_attention(const View<const float>& q, const View<const float>& k,
                                                  const View<const float>& v, const Scoring& scoring,
                                                  Index block, const Choices& choices = {}) {
  const Index seq = q.shape().seq;
  auto sum = Partial<float>::empty(q.shape());
  auto tile = Partial<float>::empty(q.shape().with_seq(block));
  Tensor<float> scores(Shape{1, 1, block, block});
  for (Index i = 0; i < seq; i += block) {
    for (Index j = 0; j < seq; j += block) {
      const TokenRange queries{i, 1, std::min(block, seq - i)}, keys{j, 1, std::min(block, seq - j)};
      const Coverage coverage = scoring.mask.coverage(queries, keys);
      if (choices.skip(coverage)) continue;

      MatrixMap<float> s{scores.data(), queries.count, keys.count};
      s.noalias() = matrix(q, 0, 0, i, queries.count) * matrix(k, 0, 0, j, keys.count).transpose();
      s *= static_cast<float>(scoring.scale);
      for (Index a = 0; a < s.rows() && coverage != Coverage::full; ++a)
        for (Index b = 0; b < s.cols(); ++b)
          if (!scoring.mask.allowed(i + a, j + b)) s(a, b) = negative_infinity<float>;

      softmax_of_tile(s, matrix(v, 0, 0, j, keys.count), tile, choices);
      merge_tile(sum, i, tile, queries.count, choices);
    }
  }
  return finish(std::move(sum));
}

}  // namespace ring_attention::lesson
