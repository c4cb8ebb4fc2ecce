// Lesson 01, the failure: the scores at which the naive formula breaks, and what it gives there.
#pragma once

#include LESSON_IDEA

#include <numeric>
#include <vector>

#include "common/lesson.hpp"

namespace ring_attention::lesson {

// What the checks are given: safe_softmax, or what a mutant makes of it.
struct Formula {
  bool subtract_max = true;
  double start = negative_infinity<double>;

  template <class Row, class T>
  T operator()(const Row& x, std::span<T> p) const {
    if (!subtract_max) return naive_softmax(x, p);
    return safe_softmax(x, p, static_cast<T>(start));
  }
};
inline constexpr Formula naive{.subtract_max = false};
inline constexpr Formula finite_start{.start = -1e4};

// Does naive softmax fail for `count` scores of x? Its probabilities sum to NaN or 0 then, and not to 1.
template <class T>
bool naive_fails(T x, std::size_t count) {
  const std::vector<T> scores(count, x);
  std::vector<T> p(count);
  naive_softmax(scores, std::span<T>(p));
  return !(std::accumulate(p.begin(), p.end(), T{0}) > T{0.5});
}

// The bad score next to the last good one: bisects between 0 and `bad` until no number lies between them.
template <class T>
double breaks_at(T bad, std::size_t count) {
  T good = 0;
  for (T middle = bad / 2; middle != good && middle != bad; middle = good / 2 + bad / 2) {
    if (naive_fails(middle, count))
      bad = middle;
    else
      good = middle;
  }
  return bad;
}

template <class T>
void find_limits(Lesson& lesson, const std::string& type, Table& table) {
  const double high = breaks_at<T>(1000, 1);
  const double vanish = breaks_at<T>(1000, 1024);
  const double low = breaks_at<T>(-800, 1);
  const auto text = [](double x) { return format("%.*g", std::numeric_limits<T>::max_digits10, x); };
  table.row({type, text(high), text(vanish), text(low)});
  const double theory = std::log(double{std::numeric_limits<T>::max()});
  lesson.check(type + ": naive softmax breaks at the log of the largest number",
               std::abs(high / theory - 1) <= std::numeric_limits<T>::epsilon());
}

// Of the scores x, x - 1: p of the first, which is 1 / (1 + 1/e) = 0.731059 for every x, and the denominator.
template <class T>
struct Pair {
  T p, l;
};
template <class T>
Pair<T> pair(const Formula& softmax, double x) {
  const std::vector<T> scores{static_cast<T>(x), static_cast<T>(x - 1)};
  std::vector<T> p(2);
  const T l = softmax(scores, std::span<T>(p));
  return {p[0], l};
}

// The same two scores, moved up and down. NaN is easy to notice, a wrong number is not.
inline void show_failure(Lesson& lesson, const Formula& safe) {
  const auto text = [](double p) { return std::isnan(p) ? "nan" : format("%.6f", p); };
  Table table({"scores", "naive float", "naive double", "m from -1e4, float", "safe float"});
  for (const double x : {710., 89., 80., 0., -80., -102., -104., -746., -10050., -10102., -10200.})
    table.row({format("%.0f, %.0f", x, x - 1), text(pair<float>(naive, x).p), text(pair<double>(naive, x).p),
               text(pair<float>(finite_start, x).p), text(pair<float>(safe, x).p)});
  lesson.print("pairs", table);
  lesson.check("m from -1e4, scores near -10200: l = 0, the row is lost",
               pair<float>(finite_start, -10200).l == 0);
  lesson.check("m from -inf, scores near -10200: l is at least 1", pair<float>(safe, -10200).l >= 1);
  lesson.check("all scores masked: p is 0", pair<float>(safe, negative_infinity<double>).p == 0);

  bool same = true;
  for (double x = -120; x <= 120; x += 0.5) same = same && pair<float>(safe, x).p == pair<float>(safe, 0).p;
  lesson.check("safe softmax of x, x - 1: the same bits for every x from -120 to 120", same);
}

}  // namespace ring_attention::lesson
