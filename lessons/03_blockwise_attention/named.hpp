// Lesson 03: the mistakes that the judge of its exercise names.
#pragma once

#include LESSON_IDEA

#include "common/named.hpp"

namespace ring_attention::lesson {

using Numbers = std::vector<double>;

inline void append(Numbers& all, const Tensor<float>& array) {
  all.insert(all.end(), array.data(), array.data() + array.size());
}

/// Three queries, three keys, values of two columns: a row with all keys, one with a hidden key, one with none.
inline bool name_tile(const Lesson& lesson) {
  constexpr float hidden = negative_infinity<float>;
  const auto scores = [] {
    Tensor<float> s(Shape{1, 1, 3, 3});
    std::ranges::copy(std::initializer_list<float>{1, 3, 2, 4, hidden, 2, hidden, hidden, hidden}, s.data());
    return s;
  };
  Tensor<float> v(Shape{1, 1, 3, 2});
  std::ranges::copy(std::initializer_list<float>{1, -2, 3, 5, -1, 4}, v.data());
  const auto of_tile = [&](auto softmax) {
    Tensor<float> s = scores();
    auto tile = Partial<float>::empty(Shape{1, 1, 3, 2});
    softmax(MatrixMap<float>{s.data(), 3, 3}, tile);
    Numbers all;
    for (const auto* array : {&tile.o, &tile.m, &tile.l}) append(all, *array);
    return all;
  };
  const auto written = [&](auto maximum, auto p_of, auto term, auto kept_m) {
    return of_tile([=, &v](MatrixMap<float> s, Partial<float>& tile) {
      for (Index a = 0; a < 3; ++a) {
        const float m = maximum(s, a);
        float l = 0;
        for (Index b = 0; b < 3; ++b) {
          l += term(s(a, b), m);
          s(a, b) = p_of(s(a, b), m);
        }
        tile.m.data()[a] = kept_m(m);
        tile.l.data()[a] = l;
      }
      matrix(tile.o.view(), 0, 0) = s * matrix(std::as_const(v).view(), 0, 0);
    });
  };
  const auto largest = [](const auto& s, Index a) { return std::max({s(a, 0), s(a, 1), s(a, 2)}); };
  const auto e = rescale<float>;
  const auto unguarded = [](float s, float m) { return std::exp(s - m); };
  const auto same = [](float m) { return m; };
  return names_mistake(
      lesson, "softmax of a tile", of_tile([&](const MatrixMap<float>& s, Partial<float>& tile) {
        softmax_of_tile(s, matrix(std::as_const(v).view(), 0, 0), tile, {});
      }),
      written(largest, e, e, same),
      {{"m is the last score of the row, not the largest",
        written([](const auto& s, Index a) { return s(a, 2); }, e, e, same)},
       {"no guard: in a row without a visible key -inf - (-inf) is NaN",
        written(largest, unguarded, unguarded, same)},
       {"no maximum is subtracted", written([](const auto&, Index) { return 0.0F; }, e, e, same)},
       {"s is not replaced by p: o adds up scores", written(
                                                        largest, [](float s, float) { return s; }, e, same)},
       {"l adds up the scores, not their p", written(
                                                 largest, e, [](float s, float) { return s; }, same)},
       {"tile.m is not set", written(largest, e, e, [](float) { return hidden; })}});
}

/// Rows 1 to 3 of a state get a tile: with a larger maximum, with a smaller one, and as the first.
inline bool name_merge(const Lesson& lesson) {
  const auto state = [](std::initializer_list<float> m, std::initializer_list<float> l, float o) {
    auto partial = Partial<float>::empty(Shape{1, 1, std::ssize(m), 2});
    std::ranges::copy(m, partial.m.data());
    std::ranges::copy(l, partial.l.data());
    for (float& x : partial.o.view().elements()) x = o += 0.75F;
    return partial;
  };
  constexpr float none = negative_infinity<float>;
  const auto of_merge = [&](auto merge_into) {
    auto sum = state({5, 1, 3, none}, {1, 2, 1.5F, 0}, 0);
    for (Index d = 6; d < 8; ++d) sum.o.data()[d] = 0;
    merge_into(sum, state({3, 1, 2}, {1.25F, 2, 1}, -2));
    Numbers all;
    for (const auto* array : {&sum.o, &sum.m, &sum.l}) append(all, *array);
    return all;
  };
  struct Factors {
    float keep_o, keep_l, add, m;
  };
  const auto written = [&](auto factors) {
    return of_merge([=](Partial<float>& sum, const Partial<float>& tile) {
      for (Index a = 0; a < 3; ++a) {
        float &m = sum.m.data()[a + 1], &l = sum.l.data()[a + 1];
        const float tile_m = tile.m.data()[a];
        const Factors f = factors(m, tile_m, std::max(m, tile_m));
        for (Index d = 0; d < 2; ++d) {
          float& o = sum.o.data()[2 * (a + 1) + d];
          o = f.keep_o * o + f.add * tile.o.data()[2 * a + d];
        }
        l = f.keep_l * l + f.add * tile.l.data()[a];
        m = f.m;
      }
    });
  };
  const auto e = rescale<float>;
  return names_mistake(
      lesson, "merge",
      of_merge([](Partial<float>& sum, const Partial<float>& tile) { merge_tile(sum, 1, tile, 3, {}); }),
      written([=](float m, float n, float top) { return Factors{e(m, top), e(m, top), e(n, top), top}; }),
      {{"o is not moved when the maximum grows, l is",
        written([=](float m, float n, float top) { return Factors{1, e(m, top), e(n, top), top}; })},
       {"l is not moved when the maximum grows, o is",
        written([=](float m, float n, float top) { return Factors{e(m, top), 1, e(n, top), top}; })},
       {"o and l are not moved when the maximum grows",
        written([=](float, float n, float top) { return Factors{1, 1, e(n, top), top}; })},
       {"the tile is not moved to the common maximum",
        written([=](float m, float, float top) { return Factors{e(m, top), e(m, top), 1, top}; })},
       {"the two factors are exchanged",
        written([=](float m, float n, float top) { return Factors{e(n, top), e(n, top), e(m, top), top}; })},
       {"m is not updated",
        written([=](float m, float n, float top) { return Factors{e(m, top), e(m, top), e(n, top), m}; })},
       {"the tile overwrites what was there",
        written([=](float, float n, float top) { return Factors{0, 0, e(n, top), top}; })}});
}

/// The functions do not use each other.
inline void name_mistakes(const Lesson& lesson) {
  (void)name_tile(lesson);
  (void)name_merge(lesson);
}

}  // namespace ring_attention::lesson
