// Lesson 01: safe softmax. The one new idea is safe_softmax() below: subtract the maximum first.
#include <numeric>

#include "common/lesson.hpp"
#include "ring_attention/attention/softmax.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/tensor.hpp"

using namespace ring_attention;

namespace {

// A row of scores that counts how often one of them is read.
template <class T>
struct Scores {
  std::span<const T> row;
  mutable Index reads = 0;
  T operator[](std::size_t i) const { return ++reads, row[i]; }
  [[nodiscard]] std::size_t size() const { return row.size(); }
};

// ---- The idea ------------------------------------------------------------------------------------------
// Both write p[0..n) and return the denominator.
template <class T>
T naive_softmax(const Scores<T>& x, std::span<T> p) {
  T sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += std::exp(x[i]);        // pass 1: float: inf from 88.73 on
  for (std::size_t i = 0; i < x.size(); ++i) p[i] = std::exp(x[i]) / sum;  // pass 2: inf / inf = NaN
  return sum;
}

// e^{x - m} / sum e^{x - m} is the same number for every m. With m = max x no exponent is above 0, no term
// is above 1, and the term of the maximum is 1. So 1 <= l <= n, whatever the scores are.
template <class T>
T safe_softmax(const Scores<T>& x, std::span<T> p, T start = negative_infinity<T>) {
  const auto term = [](T score, T m) { return score == negative_infinity<T> ? T{0} : std::exp(score - m); };
  T m = start, l = 0;                                                // the maximum and the sum of no scores
  for (std::size_t i = 0; i < x.size(); ++i) m = std::max(m, x[i]);  // pass 1
  for (std::size_t i = 0; i < x.size(); ++i) l += term(x[i], m);     // pass 2
  for (std::size_t i = 0; i < x.size(); ++i) p[i] = l != 0 ? term(x[i], m) / l : T{0};  // pass 3
  return l;
}
// --------------------------------------------------------------------------------------------------------

// What the checks are given: safe_softmax, or what a mutant makes of it.
struct Formula {
  bool subtract_max = true;
  double start = negative_infinity<double>;

  template <class T>
  T operator()(const Scores<T>& x, std::span<T> p) const {
    return subtract_max ? safe_softmax(x, p, static_cast<T>(start)) : naive_softmax(x, p);
  }
};
constexpr Formula naive{.subtract_max = false};
constexpr Formula finite_start{.start = -1e4};

// p and l of the scores (x, x - 1): p of the first is 1 / (1 + 1/e) = 0.731059 for every x.
template <class T>
struct Pair {
  Pair(const Formula& softmax, double x) {
    const std::vector<T> scores{static_cast<T>(x), static_cast<T>(x - 1)};
    std::vector<T> both(2);
    l = softmax(Scores<T>{scores}, std::span<T>(both));
    p = both[0];
  }
  T p, l;
};

// Where naive softmax breaks: bisects between 0 and a bad score until they are neighbours.
template <class T>
double breaks_at(T bad, std::size_t equal_scores) {
  std::vector<T> p(equal_scores);
  const auto is_bad = [&](T x) {
    naive_softmax(Scores<T>{std::vector<T>(equal_scores, x)}, std::span<T>(p));
    return !(std::accumulate(p.begin(), p.end(), T{0}) > T{0.5});  // NaN or 0; it should be 1
  };
  T good = 0;
  for (T middle = bad / 2; middle != good && middle != bad; middle = good / 2 + bad / 2)
    (is_bad(middle) ? bad : good) = middle;
  return bad;
}

template <class T>
void find_limits(Lesson& lesson, const std::string& type, Table& table) {
  const double high = breaks_at<T>(1000, 1), vanish = breaks_at<T>(1000, 1024), low = breaks_at<T>(-800, 1);
  const auto text = [](double x) { return format("%.*g", std::numeric_limits<T>::max_digits10, x); };
  table.row({type, text(high), text(vanish), text(low)});
  const double theory = std::log(double{std::numeric_limits<T>::max()});
  lesson.check(type + ": naive softmax breaks at the log of the largest number",
               std::abs(high / theory - 1) <= std::numeric_limits<T>::epsilon());
  lesson.record("overflow_from_" + type, high);
  lesson.record("all_zero_from_" + type, vanish);
  lesson.record("underflow_from_" + type, low);
}

// The same two scores, moved up and down: NaN is the loud failure, a wrong number the silent one.
void show_failure(Lesson& lesson, const Formula& safe) {
  const auto text = [](double p) { return std::isnan(p) ? "nan" : format("%.6f", p); };
  Table table({"scores", "naive float", "naive double", "m from -1e4, float", "safe float"});
  for (const double x : {710., 89., 80., 0., -80., -102., -104., -746., -10050., -10102., -10200.})
    table.row({format("%.0f, %.0f", x, x - 1), text(Pair<float>(naive, x).p), text(Pair<double>(naive, x).p),
               text(Pair<float>(finite_start, x).p), text(Pair<float>(safe, x).p)});
  lesson.print(table);
  lesson.check("m from -1e4, logits near -10200: l = 0, the row is lost",
               Pair<float>(finite_start, -10200).l == 0);
  lesson.check("m from -inf, logits near -10200: l is at least 1", Pair<float>(safe, -10200).l >= 1);
  std::vector<double> logits, naive_p, safe_p;
  std::vector<Index> finite;
  for (double x = -120; x <= 120; x += 0.5) {
    logits.push_back(x);
    naive_p.push_back(Pair<float>(naive, x).p);
    finite.push_back(std::isfinite(naive_p.back()) ? 1 : 0);
    safe_p.push_back(Pair<float>(safe, x).p);
  }
  lesson.check("safe softmax of x, x - 1: the same bits for every x from -120 to 120",
               std::all_of(safe_p.begin(), safe_p.end(), [&](double p) { return p == safe_p[0]; }));
  lesson.record("logits", logits);
  lesson.record("naive_float", naive_p);
  lesson.record("naive_float_finite", finite);
  lesson.record("safe_float", safe_p);
}

// The oracle: Eigen in double.
Tensor<double> reference_softmax(const Tensor<float>& x) {
  Tensor<double> p = converted<double>(x);
  auto row = matrix(p.view(), 0, 0);
  row = (row.array() - row.maxCoeff()).exp().eval();
  row /= row.sum();
  return p;
}

// Ordinary scores (spike 1), or some in the hundreds. Returns how often naive and safe read the row.
std::vector<Index> check_agreement(Lesson& lesson, const Formula& safe, Index length, double spike) {
  Tensor<float> x(Shape{1, 1, length, 1}), p(x.shape()), library(x.shape());
  fill_random(x.view(), {lesson.seed(), 0, 16, spike});
  const auto elements = [](auto& tensor) { return tensor.view().elements(); };
  const Scores<float> for_naive{elements(x)}, for_safe{elements(x)};
  const double largest = matrix(x.view(), 0, 0).cwiseAbs().maxCoeff();
  const std::string row = format("scores up to %.3g: ", largest);
  naive_softmax(for_naive, elements(p));
  softmax_naive<float>(elements(x), elements(library));
  if (largest < 88) lesson.check(row + "naive, bit for bit the library's", bitwise_equal(p, library));
  safe(for_safe, elements(p));
  softmax_safe<float>(elements(x), elements(library));
  lesson.check(row + "safe, bit for bit the library's", bitwise_equal(p, library));
  Tolerance tolerance = attention_tolerance<float>(length, largest, 1);
  tolerance.absolute = std::numeric_limits<float>::min();  // each p by itself, down to the smallest
  lesson.check(row + "safe agrees with Eigen in double", compare(p, reference_softmax(x), tolerance));
  return {for_naive.reads / length, for_safe.reads / length};
}

void show_cost(Lesson& lesson, const std::vector<Index>& passes) {
  const Index e = sizeof(float);
  const std::vector<Index> bytes{(passes[0] + 1) * e, (passes[1] + 1) * e};  // reads, and p written once
  lesson.say(format("  naive reads the row %lld times: %lld bytes a score", passes[0] + 0LL, bytes[0] + 0LL));
  lesson.say(format("  safe  reads the row %lld times: %lld bytes a score", passes[1] + 0LL, bytes[1] + 0LL));
  lesson.check("passes over the row: 2 naive, 3 safe", passes == std::vector<Index>{2, 3});
  lesson.record("passes", passes);
  lesson.record("bytes_per_score", bytes);
}

int safe_softmax_lesson(int argc, char** argv) {
  Lesson lesson(
      "01", "safe_softmax",
      "exp overflows long before softmax has a reason to. Subtracting the maximum changes no probability\n"
      "and keeps the denominator between 1 and the length of the row.");
  Index length = 4096;
  lesson.options().option("--length", length, "Scores in the row that is compared with the reference");
  lesson.offer_mutants({{"no-max", "the naive formula where the safe one should be"},
                        {"finite-start", "the maximum starts at -1e4 instead of -inf"}});
  if (!lesson.parse(argc, argv)) return 0;
  const Formula safe = lesson.mutant("no-max")         ? naive
                       : lesson.mutant("finite-start") ? finite_start
                                                       : Formula{};

  lesson.heading("The failure: where the naive formula breaks");
  Table limits({"type", "one score: NaN from", "1024 equal scores: p = 0 from", "one score: NaN again from"});
  find_limits<float>(lesson, "float", limits);
  find_limits<double>(lesson, "double", limits);
  lesson.print(limits);

  lesson.heading("The same two scores x, x - 1: p of the first is 0.731059 for every x");
  show_failure(lesson, safe);

  lesson.heading("The agreement");
  const std::vector<Index> passes = check_agreement(lesson, safe, length, 1);
  check_agreement(lesson, safe, length, 200);

  lesson.heading("The cost");
  show_cost(lesson, passes);
  return lesson.finish("naive softmax is NaN from 88.73 on in float; safe softmax never, for one more pass");
}

}  // namespace

int main(int argc, char** argv) {
  return serial_main([&] { return safe_softmax_lesson(argc, argv); });
}
