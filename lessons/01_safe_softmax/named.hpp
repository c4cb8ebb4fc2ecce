// Lesson 01: the mistakes that the judge of its exercise names.
#pragma once

#include LESSON_IDEA

#include <numeric>

#include "common/named.hpp"

namespace ring_attention::lesson {

inline void name_mistakes(const Lesson& lesson) {
  using Row = std::vector<float>;
  constexpr float hidden = negative_infinity<float>;
  const auto of_rows = [](auto softmax) {
    std::vector<double> all;
    for (const Row& row : {Row{1, 3, 2}, Row{-200, -201}, Row{-10200, -10201}, Row{90, 89}, Row{hidden, 1},
                           Row{hidden, hidden}}) {
      Row p(row.size());
      all.push_back(softmax(row, std::span(p)));
      all.insert(all.end(), p.begin(), p.end());
    }
    return all;
  };
  const auto written = [&](auto maximum, auto term, auto share) {
    return of_rows([=](const Row& x, std::span<float> p) {
      const float m = maximum(x);
      float l = 0;
      for (const float score : x) l += term(score, m);
      for (std::size_t i = 0; i < x.size(); ++i) p[i] = share(x[i], m, l);
      return l;
    });
  };
  const auto from = [](float start) {
    return [=](const Row& x) { return std::max(start, std::ranges::max(x)); };
  };
  const auto largest = from(hidden);
  const auto unguarded = [](float x, float m) { return std::exp(x - m); };
  const auto term = [=](float x, float m) { return x == hidden ? 0 : unguarded(x, m); };
  const auto share = [=](float x, float m, float l) { return l != 0 ? term(x, m) / l : 0; };
  const std::vector<Named> mistakes{
      {"no maximum is subtracted", written([](const Row&) { return 0.0F; }, term, share)},
      {"m starts at 0, or at the smallest positive float, not at -inf", written(from(0), term, share)},
      {"m starts at -10^4, not at -inf", written(from(-1e4F), term, share)},
      {"m is the last score, not the largest", written([](const Row& x) { return x.back(); }, term, share)},
      {"m is the smallest score", written([](const Row& x) { return std::ranges::min(x); }, term, share)},
      {"l adds up e^x, without m", written(
                                       largest, [](float x, float) { return std::exp(x); }, share)},
      {"l adds up e^{m - x}: the sign",
       written(
           largest, [](float x, float m) { return std::exp(m - x); }, share)},
      {"l has no guard for a masked score: -inf - (-inf) is NaN", written(largest, unguarded, share)},
      {"p has no test for l = 0: 0 / 0 is NaN",
       written(largest, term, [=](float x, float m, float l) { return term(x, m) / l; })},
      {"p is e^x / l, without m",
       written(largest, term, [](float x, float, float l) { return l != 0 ? std::exp(x) / l : 0; })},
      {"p is not divided by l", written(largest, term, [=](float x, float m, float) { return term(x, m); })}};
  (void)names_mistake(lesson, "safe_softmax",
                      of_rows([](const Row& x, std::span<float> p) { return safe_softmax(x, p); }),
                      written(largest, term, share), mistakes);
}

}  // namespace ring_attention::lesson
