// Lesson 02: online softmax. online_softmax.hpp is the idea, lse_forms.hpp the same for results that are already
// divided by their sum; this program shows what they are good for.
#include LESSON_IDEA
#include LESSON_MISTAKES

#include "checks.hpp"
#include "common/counted_row.hpp"
#include "lse_checks.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson;

// Safe softmax needs the maximum first. Of a row in two parts it makes two rows, whose sums do not add up.
void show_failure(Lesson& lesson) {
  const std::vector<float> row{1, 2, 0, 6, 4, 5};
  const std::span<const float> x(row);
  const auto a = online_state<float>(x.first(3)), b = online_state<float>(x.last(3)),
             all = online_state<float>(x);
  lesson.say(format("  scores 1 2 0 | 6 4 5 in two parts: m = %g, l = %.4f and m = %g, l = %.4f", double{a.m},
                    double{a.l}, double{b.m}, double{b.l}));
  lesson.say(format("  the two l added: %.4f, wrong by %.0f %%; the whole row: m = %g, l = %.4f",
                    double{a.l + b.l}, 100 * (double{a.l + b.l} / all.l - 1), double{all.m}, double{all.l}));
}

// The state after each score of a short row.
void show_pass(Lesson& lesson, Move move) {
  const std::vector<float> row{1, 3, 2, 5, 4, 4, 7, 6, 0, 8, 3, 7};
  Table table({"score", "m", "l is moved by", "l"});
  State<float> state;
  double right = 0;
  for (std::size_t n = 1; n <= row.size(); ++n) {
    const float before = state.m;
    state = online_state<float>(std::span(row).first(n), move);
    table.row({format("%g", double{row[n - 1]}), format("%g", double{state.m}),
               format("%.4f", double{move(before, state.m)}), format("%.6f", double{state.l})});
    right += std::exp(double{row[n - 1]} - 8);
  }
  lesson.print("running", table);
  lesson.check("l is the sum of all e^{x - 8}", std::abs(state.l - right) < 1e-6, format("%.6f", right));
}

// The library's pass, and Eigen in double for p = e^{x - m} / l and lse = m + log l.
void check_agreement(Lesson& lesson, const Row& row, Move move) {
  const CountedRow scores{row.x.view().elements()};
  const State<float> state = online_state<float>(scores, move);
  const SoftmaxState<float> library = library_state(scores.row);
  lesson.check("m and l, bit for bit the library's", state.m == library.m && state.l == library.l);

  const auto x = matrix(row.x.view(), 0, 0).cast<double>().eval();
  Tensor<float> p(row.x.shape());
  normalise(scores, state, p.view().elements());
  Tensor<double> want(p.shape());
  matrix(want.view(), 0, 0) = (x.array() - x.maxCoeff()).exp();
  const double l = matrix(want.view(), 0, 0).sum();
  matrix(want.view(), 0, 0) /= l;
  const Tolerance tolerance = attention_tolerance<float>(x.size(), x.maxCoeff(), 1);
  lesson.check("p agrees with Eigen in double", compare(p, want, tolerance));
  lesson.check("lse agrees with Eigen in double",
               compare(Tensor<float>(Shape{1, 1, 1, 1}, state.m + std::log(state.l)),
                       Tensor<double>(Shape{1, 1, 1, 1}, x.maxCoeff() + std::log(l)), tolerance));

  const Index e = sizeof(float), passes = scores.reads / x.size();
  lesson.heading("The cost");
  lesson.say("  safe, lesson 01:  the row is read 3 times, p is written once: 16 bytes a score");
  lesson.say(format("  online:           the row is read %d times, p is written once: %d bytes a score",
                    static_cast<int>(passes), static_cast<int>((passes + 1) * e)));
  lesson.check("one pass for (m, l), one for p", passes == 2);
}

int online_softmax_lesson(int argc, char** argv) {
  Lesson lesson(
      "02", "online_softmax",
      "The maximum and the sum can be found in one pass, or piece by piece in any order: two numbers\n"
      "(m, l) are all that must be kept of the scores so far.");
  Index length = 4096;
  lesson.options().option("--length", length, "Scores in the random row", {2});
  lesson.offer_mutants({{"no-rescale", "l stays as it is when the maximum grows"},
                        {"textbook-lse", "lse + log(1 + exp(lse_b - lse)) as printed"},
                        {"unguarded", "the sigmoid form without a test for lse = -inf"},
                        {"swapped-sign", "sigmoid(lse - lse_b) for sigmoid(lse_b - lse)"}});
  if (!lesson.parse(argc, argv)) return 0;
  const Move move = lesson.mutant("no-rescale") ? stay : factor<float>;
  const lse_forms::Merge log1p = lesson.mutant("textbook-lse") ? lse_forms::textbook_form : log1p_form<float>;
  const lse_forms::Merge sigmoid = lesson.mutant("unguarded")      ? lse_forms::unguarded_form
                                   : lesson.mutant("swapped-sign") ? lse_forms::swapped_form
                                                                   : sigmoid_form<float>;
  Row row(lesson.seed(), length);

  lesson.heading("The failure: safe softmax of a row that comes in two parts");
  show_failure(lesson);
  lesson.heading("One pass: the state after each score");
  show_pass(lesson, move);
  lesson.heading("Any order: the states are a commutative monoid");
  check_monoid(lesson, row, move);
  lesson.heading("Normalised results (lse, out): four ways to write one merge");
  lse_forms::show_table(lesson);
  lse_forms::check_sign(lesson, log1p, sigmoid);
  lse_forms::check_chain(lesson, "log1p", log1p);
  lse_forms::check_chain(lesson, "sigmoid", sigmoid);
  lesson.heading("The agreement");
  check_agreement(lesson, row, move);
  lesson::name_mistakes(lesson);
  return lesson.finish("two passes; pieces merge in any order");
}

int main(int argc, char** argv) {
  return serial_main([&] { return online_softmax_lesson(argc, argv); });
}
