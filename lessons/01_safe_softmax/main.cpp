// Lesson 01: safe softmax. safe_softmax.hpp is the idea; this program shows what it is good for.
#include LESSON_IDEA
#include LESSON_MISTAKES

#include "common/counted_row.hpp"
#include "common/lesson.hpp"
#include "failure.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/tensor.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson;

// The reference: Eigen in double.
Tensor<double> reference_softmax(const Tensor<float>& x) {
  Tensor<double> p = converted<double>(x);
  auto row = matrix(p.view(), 0, 0);
  row = (row.array() - row.maxCoeff()).exp().eval();
  row /= row.sum();
  return p;
}

// What the library's state and factor make of the row with a known maximum m. The naive formula is that of m = 0.
Tensor<float> library_softmax(const Tensor<float>& x, float m) {
  SoftmaxState<float> state{m, 0};
  for (const float score : x.view().elements()) state.l += rescale(score, state.m);
  Tensor<float> p(x.shape());
  for (Index i = 0; i < x.size(); ++i) p.data()[i] = rescale(x.data()[i], state.m) / state.l;
  return p;
}

// Ordinary scores (spike 1), or some in the hundreds. Returns how often naive and safe read the row.
std::vector<Index> check_agreement(Lesson& lesson, const Formula& safe, Index length, double spike) {
  Tensor<float> x(Shape{1, 1, length, 1}), p(x.shape());
  fill_random(x.view(), {lesson.seed(), 0, 16, spike});
  const CountedRow for_naive{x.view().elements()}, for_safe{x.view().elements()};
  const auto scores = matrix(x.view(), 0, 0);
  const double largest = scores.cwiseAbs().maxCoeff();
  const std::string row = format("scores up to %.3g: ", largest);

  naive_softmax(for_naive, p.view().elements());
  if (largest < 88)
    lesson.check(row + "naive, bit for bit the library's", bitwise_equal(p, library_softmax(x, 0)));
  safe(for_safe, p.view().elements());
  lesson.check(row + "safe, bit for bit the library's",
               bitwise_equal(p, library_softmax(x, scores.maxCoeff())));
  Tolerance tolerance = attention_tolerance<float>(length, largest, 1);
  tolerance.absolute = std::numeric_limits<float>::min();  // each p by itself, down to the smallest
  lesson.check(row + "safe agrees with Eigen in double", compare(p, reference_softmax(x), tolerance));
  return {for_naive.reads / length, for_safe.reads / length};
}

void show_cost(Lesson& lesson, const std::vector<Index>& passes) {
  const auto line = [&](const char* name, std::size_t i) {
    const Index bytes = (passes[i] + 1) * Index{sizeof(float)};  // reads, and p written once
    lesson.say(std::string("  ") + name + " reads the row " + std::to_string(passes[i]) +
               " times: " + std::to_string(bytes) + " bytes a score");
  };
  line("naive", 0);
  line("safe ", 1);
  lesson.check("passes over the row: 2 naive, 3 safe", passes == std::vector<Index>{2, 3});
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
  lesson.print("limits", limits);
  lesson.heading("The same two scores x, x - 1: p of the first is 0.731059 for every x");
  show_failure(lesson, safe);
  lesson.heading("The agreement");
  const std::vector<Index> passes = check_agreement(lesson, safe, length, 1);
  check_agreement(lesson, safe, length, 200);
  lesson.heading("The cost");
  show_cost(lesson, passes);
  lesson::name_mistakes(lesson);
  return lesson.finish("naive is NaN from 88.73 on, safe never");
}

int main(int argc, char** argv) {
  return serial_main([&] { return safe_softmax_lesson(argc, argv); });
}
