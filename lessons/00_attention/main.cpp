// Lesson 00: attention. attention.hpp is the idea; this program prints an example that fits a sheet of paper, and what
// the same formula costs for a million tokens. ring_attention.cpp beside it is what the course is about, in one file.
#include LESSON_IDEA

#include "common/lesson.hpp"
#include "common/saved_cases.hpp"
#include "costs.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson;

namespace {

// Three tokens, D = 4: the scale is 1/2.
const Rows<double> example_q{{2, 0, 0, 0}, {0, 2, 0, 0}, {2, 2, 0, 0}};
const Rows<double> example_k{{1, 0, 0, 1}, {1, 1, 0, 0}, {0, 0, 1, 0}};
const Rows<double> example_v{{1, 0, 2, 0}, {0, 1, 2, 4}, {1, 1, 0, 0}};

void print_rows(Lesson& lesson, const std::string& title, const Rows<double>& rows, std::size_t columns) {
  lesson.say("  " + title);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    std::string line = format("    token %zu:", i);
    for (std::size_t j = 0; j < columns; ++j)
      line += j < rows[i].size() ? format(" %6.3f", rows[i][j]) : "      -";
    lesson.say(line);
  }
}

void show_example(Lesson& lesson, const Choices& choices) {
  const Attention<double> run = attention(example_q, example_k, example_v, true, choices);
  print_rows(lesson, "scores s = q . k / 2 (- is hidden: a later token)", run.scores, 3);
  print_rows(lesson, "weights p = e^s / (sum of the e^s of the row)", run.weights, 3);
  print_rows(lesson, "out = sum of p v", run.out, 4);
  const double sum = std::exp(1) + std::exp(2) + 1;  // the last token's scores are 1, 2 and 0
  const std::vector<double> by_hand{(std::exp(1) + 1) / sum, (std::exp(2) + 1) / sum,
                                    2 * (std::exp(1) + std::exp(2)) / sum, 4 * std::exp(2) / sum};
  double worst = 0;
  for (std::size_t d = 0; d < by_hand.size(); ++d)
    worst = std::max(worst, std::abs(run.out[2][d] - by_hand[d]));
  lesson.check("the last token's out is what one gets by hand", worst <= 1e-15);
  lesson.check("the first token sees itself only: its out is its own value", run.out[0] == example_v[0]);
}

// The library's dense reference, which is what later lessons are compared with.
void check_reference(Lesson& lesson, const Choices& choices) {
  constexpr Index seq = 200, dim = 16;
  SavedCases saved(lesson.save_folder(), {});
  for (const bool causal : {false, true}) {
    const RandomProblem problem{{1, 1, seq, dim},
                                {1, 1, seq, dim},
                                {default_scale(dim), causal ? Mask::causal() : Mask{}},
                                lesson.seed()};
    const Reference want = problem.reference<double>(whole(seq));
    const auto rows = [&](std::uint64_t stream) {
      return costs::random_rows<double>(lesson, stream, seq, dim);
    };
    const Rows<double> out = attention(rows(0), rows(1), rows(2), causal, choices).out;
    Tensor<double> got(problem.q);
    for (Index i = 0; i < seq; ++i)
      std::ranges::copy(out[static_cast<std::size_t>(i)], got.view().row(0, 0, i).begin());
    lesson.check(std::string(causal ? "causal" : "no mask") + ": agrees with the library's dense reference",
                 compare(got, want.out, problem.tolerance<double>(want)));
    saved.add<double>(causal ? "causal" : "full", problem, whole(seq), {{"out", got}});
  }
}

int attention_lesson(int argc, char** argv) {
  Lesson lesson(
      "00", "attention",
      "Attention gives each token a mean of all values, weighted by how well their keys fit its query.\n"
      "The formula needs S x S scores, which do not fit in memory for a million tokens.");
  lesson.offer_mutants({{"no-scale", "scores are not divided by the square root of D"},
                        {"future", "a causal query also sees the next token"}});
  lesson.offer_save();
  if (!lesson.parse(argc, argv)) return 0;
  const Choices choices{.scale = !lesson.mutant("no-scale"), .future = lesson.mutant("future") ? 1U : 0U};

  lesson.heading("Three tokens, D = 4, causal");
  show_example(lesson, choices);
  lesson.heading("Why scores are divided by the square root of D");
  costs::show_scale(lesson, choices);
  lesson.heading("The agreement");
  check_reference(lesson, choices);
  lesson.heading("The cost");
  costs::check_formulas(lesson);
  costs::show_costs(lesson);
  return lesson.finish("a weighted mean of the values; S x S scores do not fit");
}

}  // namespace

int main(int argc, char** argv) {
  return serial_main([&] { return attention_lesson(argc, argv); });
}
