// Lesson 02: the mistakes that the judge of its exercise names.
#pragma once

#include LESSON_IDEA

#include "common/named.hpp"

namespace ring_attention::lesson {

using Numbers = std::vector<double>;
inline constexpr float hidden = negative_infinity<float>;

inline bool name_factor(const Lesson& lesson) {
  const auto of = [](auto factor_of) {
    return Numbers{factor_of(1, 3), factor_of(3, 1), factor_of(2, 2), factor_of(hidden, 2),
                   factor_of(hidden, hidden)};
  };
  const auto guarded = [&](auto e) {
    return of([=](float from, float to) { return from == hidden ? 0 : std::exp(e(from, to)); });
  };
  const auto right = [](float from, float to) { return from - to; };
  const auto reversed = [](float from, float to) { return to - from; };
  return names_mistake(
      lesson, "factor", of(factor<float>), guarded(right),
      {{"the sign: e^{to - from}", guarded(reversed)},
       {"the sign: e^{to - from}", of([=](float a, float b) { return std::exp(b - a); })},
       {"no guard: -inf - (-inf) is NaN", of([](float a, float b) { return std::exp(a - b); })},
       {"it is always 1", of([](float, float) { return 1.0F; })}});
}

/// A state after some scores, with `next(state, score, m)` for the line of the idea; m is the new maximum.
inline bool name_score(const Lesson& lesson) {
  using Scores = std::vector<float>;
  const auto of_rows = [](auto state_of) {
    Numbers all;
    for (const Scores& row :
         {Scores{1, 2, 0}, Scores{6, 4, 5}, Scores{hidden, 1}, Scores{1, hidden}, Scores{2}}) {
      const State<float> state = state_of(row);
      all.insert(all.end(), {state.m, state.l});
    }
    return all;
  };
  const auto written = [&](auto next) {
    return of_rows([=](const Scores& row) {
      State<float> state;
      for (const float score : row) state = next(state, score, std::max(state.m, score));
      return state;
    });
  };
  using S = State<float>;
  const auto f = factor<float>;
  return names_mistake(
      lesson, "one more score", of_rows([](const Scores& row) { return online_state<float>(row); }),
      written([=](S s, float x, float m) { return S{m, s.l * f(s.m, m) + f(x, m)}; }),
      {{"l is not moved when the maximum grows, or m is updated before the factor is formed",
        written([=](S s, float x, float m) { return S{m, s.l + f(x, m)}; })},
       {"l is moved by e^{m' - m}: the two maxima are exchanged",
        written([=](S s, float x, float m) { return S{m, s.l * std::exp(m - s.m) + f(x, m)}; })},
       {"the term of the new score has the old maximum",
        written([=](S s, float x, float m) { return S{m, s.l * f(s.m, m) + f(x, s.m)}; })},
       {"the term of the new score is always 1",
        written([=](S s, float, float m) { return S{m, s.l * f(s.m, m) + 1}; })},
       {"the term of the new score is missing",
        written([=](S s, float, float m) { return S{m, s.l * f(s.m, m)}; })},
       {"the sum so far is lost", written([=](S, float x, float m) { return S{m, f(x, m)}; })},
       {"m is the new score, not the larger one",
        written([=](S s, float x, float) { return S{x, s.l * f(s.m, x) + f(x, x)}; })}});
}

inline bool name_merge(const Lesson& lesson) {
  using S = State<float>;
  const auto of_pairs = [](auto merge_of) {
    Numbers all;
    for (const auto& [a, b] : std::initializer_list<std::pair<S, S>>{
             {{1, 2}, {3, 1}}, {{3, 1}, {1, 2}}, {{}, {3, 1}}, {{3, 1}, {}}, {{}, {}}}) {
      const S both = merge_of(a, b);
      all.insert(all.end(), {both.m, both.l});
    }
    return all;
  };
  const auto f = factor<float>;
  const auto written = [&](auto sum) {
    return of_pairs([=](S a, S b) {
      const float m = std::max(a.m, b.m);
      return S{m, sum(a, b, m)};
    });
  };
  return names_mistake(
      lesson, "merge", of_pairs(merged<float>),
      written([=](S a, S b, float m) { return a.l * f(a.m, m) + b.l * f(b.m, m); }),
      {{"neither l is moved to the common maximum", written([](S a, S b, float) { return a.l + b.l; })},
       {"the second l is not moved to the common maximum",
        written([=](S a, S b, float m) { return a.l * f(a.m, m) + b.l; })},
       {"the first l is not moved to the common maximum",
        written([=](S a, S b, float m) { return a.l + b.l * f(b.m, m); })},
       {"the factors of the two sets are exchanged",
        written([=](S a, S b, float m) { return a.l * f(b.m, m) + b.l * f(a.m, m); })},
       {"the sign of a factor: e^{m - m_a} for e^{m_a - m}",
        written([=](S a, S b, float m) { return a.l * f(m, a.m) + b.l * f(m, b.m); })},
       {"the second set is lost", of_pairs([](S a, S) { return a; })},
       {"m is that of the first set",
        of_pairs([=](S a, S b) { return S{a.m, a.l * f(a.m, a.m) + b.l * f(b.m, a.m)}; })}});
}

/// The first function that is wrong: the others use it.
inline void name_mistakes(const Lesson& lesson) {
  (void)(name_factor(lesson) || name_score(lesson) || name_merge(lesson));
}

}  // namespace ring_attention::lesson
