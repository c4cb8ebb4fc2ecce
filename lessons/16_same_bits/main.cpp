// Lesson 16: the same bits on any number of ranks. The idea is in exact_state.hpp; this program shows the bits of a
// usual ring, what is nearly enough, the lemma, the library's ring with exact sums, and what they cost.
#include LESSON_IDEA

#include "cost.hpp"
#include "decimal.hpp"
#include "job.hpp"
#include "library.hpp"
#include "state_checks.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_16;

namespace {

/// What all orders make of a problem.
struct Result {
  std::vector<Index> differing{0, 0, 0};  // elements of out, lse, dV unlike those of the first order, at most
  double error = 0;                       // of the first order
};

template <class Sum>
Result outcome_of(const Data& data, Mistake mistake) {
  Result outcome;
  Rows first;
  std::uint64_t seed = 1;
  for (const Order& order : all_orders()) {
    const Rows rows = OrderedSums<Sum>(data, order, mistake, seed++).run();
    if (first.out.empty()) first = rows;
    const std::array counts{differing(rows.out, first.out), differing(rows.lse, first.lse),
                            differing(rows.dv, first.dv)};
    for (std::size_t i = 0; i < counts.size(); ++i)
      outcome.differing[i] = std::max(outcome.differing[i], counts[i]);
  }
  outcome.error = error_of(first, data);
  return outcome;
}

Result outcome_of(const Data& data, Mistake mistake) {
  if (mistake == "relative-integer") return outcome_of<RelativeInteger>(data, mistake);
  if (mistake == "carry") return outcome_of<Carried>(data, mistake);
  if (mistake == "truncate") return outcome_of<Truncated>(data, mistake);
  if (mistake == "sum-level") return outcome_of<LevelOfSum>(data, mistake);
  if (mistake == "real-maximum") return outcome_of<RealMaximum>(data, mistake);
  return outcome_of<Exact>(data, mistake);
}

std::string cell(const Result& outcome) {
  const auto& counts = outcome.differing;
  return format("%d %d %d", static_cast<int>(counts[0]), static_cast<int>(counts[1]),
                static_cast<int>(counts[2]));
}

Index sum_of(const Result& outcome) {
  return outcome.differing[0] + outcome.differing[1] + outcome.differing[2];
}

// One line for each way to add: how many elements of out, lse and dV differ on each problem.
void show_mistakes(Lesson& lesson, const std::vector<Data>& problems) {
  std::vector<std::string> heading{"the sum"};
  for (const Data& data : problems) heading.push_back(data.name);
  Table table(heading);
  const auto line = [&](const std::string& name, const auto& of_data) {
    std::vector<std::string> cells{name};
    Index most = 0;
    for (const Data& data : problems) {
      const Result outcome = of_data(data);
      cells.push_back(cell(outcome));
      most = std::max(most, sum_of(outcome));
    }
    table.row(cells);
    return most;
  };
  bool shown = line("floats", [](const Data& data) {
                 return outcome_of<Running<float>>(data, Lesson::no_mistake);
               }) > 0;
  line("doubles", [](const Data& data) { return outcome_of<Running<double>>(data, Lesson::no_mistake); });
  for (const Wrong& wrong : every_mistake) {
    if (wrong.mistake == "no-limit" || wrong.mistake == "nan-digit") continue;
    shown = line(wrong.name, [&](const Data& data) { return outcome_of(data, wrong.mistake); }) > 0 && shown;
  }
  line("the digits", [](const Data& data) { return outcome_of<Exact>(data, Lesson::no_mistake); });
  lesson.print("sums", table);
  lesson.check("floats and each wrong sum differ somewhere", shown);
}

// Four numbers whose sum in double, rounded to float, depends on the order.
template <class Sum>
float sum_of(const std::vector<float>& numbers) {
  Sum sum(1);
  for (const float& number : numbers) sum.add(std::span(&number, 1), 0);
  return static_cast<float>(sum.value(0));
}
void show_doubles(Lesson& lesson) {
  const std::vector<float> falling{1, 0x1p-24F, 0x1p-53F, 0x1p-53F}, rising(falling.rbegin(), falling.rend());
  const float a = sum_of<Running<double>>(falling), b = sum_of<Running<double>>(rising);
  lesson.say(format("  1, 2^-24, 2^-53, 2^-53 added in double, then a float: %.9g; from last to first: %.9g",
                    double{a}, double{b}));
  lesson.check("doubles differ more rarely, but they do; the digits do not",
               a != b && sum_of<Exact>(falling) == sum_of<Exact>(rising));
}

void check_jobs(Lesson& lesson, const std::vector<Data>& problems, Mistake mistake) {
  for (const Data& data : problems) {
    const Result outcome = outcome_of(data, mistake);
    lesson.check(data.name + ": the same bits for all ranks, placements and orders", sum_of(outcome) == 0,
                 "out lse dV " + cell(outcome) + " differ");
    // A score of 150 has an error of 1e-5, and so have lse and the weights.
    lesson.check(data.name + ": agrees with the definition in double", outcome.error < 3e-5,
                 human_error(outcome.error));
  }
}

void check_library(Lesson& lesson, const RandomProblem& problem) {
  const std::vector<std::vector<Index>> figures = show_ranks(lesson, problem, 32);
  bool none = true;
  for (const auto& counts : figures)
    none = none && std::ranges::all_of(counts, [](Index count) { return count == 0; });
  lesson.check("out, lse, dq, dk, dv: 0 elements differ", none);
  const Arrays one = run_library(problem, 1, PlacementKind::contiguous, 32),
               zigzag = run_library(problem, 3, PlacementKind::zigzag, 32);
  bool same = true;
  for (std::size_t i = 0; i < one.all.size(); ++i) same = same && bitwise_equal(one.all[i], zigzag.all[i]);
  lesson.check("zigzag on 3 ranks: the same bits", same);
  const Reference want = problem.reference<float>(whole(problem.q.seq));
  lesson.check("out agrees with the dense reference in double",
               compare(one.all[0], want.out, problem.tolerance<float>(want)));
  lesson.check("lse agrees with the dense reference in double",
               compare(one.all[1], want.lse, problem.tolerance<float>(want)));
}

int same_bits_lesson(int argc, char** argv) {
  Lesson lesson(
      "16", "same_bits",
      "A merge of floats is associative up to rounding, so another number of ranks gives different bits.\n"
      "A state of integers on a fixed grid merges to the same bits in any order.");
  Index seq = 2048;
  lesson.options().option("--seq", seq, "Tokens of the problem whose time is measured");
  lesson.offer_mistakes(every_mistake);
  if (!lesson.parse(argc, argv)) return 0;
  const Mistake mistake = lesson.mistake_of(every_mistake);
  const RandomProblem problem{
      {1, 2, 500, 32}, {1, 1, 500, 32}, {default_scale(32), Mask::causal()}, lesson.seed()};
  const std::vector<Data> problems = all_data(lesson.seed());
  const std::string showed = "the same bits for all ranks and orders";

  if (mistake == Lesson::no_mistake) {
    lesson.heading("The failure: the library's ring as it is, 500 tokens, causal");
    const auto figures = show_ranks(lesson, problem, 0);
    lesson.check(
        "each number of ranks from 2 on has other bits than one rank",
        std::all_of(figures.begin() + 1, figures.end(), [](const auto& counts) { return counts[0] > 0; }));
    lesson.heading("In decimal: 6, 7 and 300 in two orders");
    show_decimal(lesson);
    lesson.heading("What is nearly enough: elements of out, lse and dV that differ");
    show_mistakes(lesson, problems);
    show_doubles(lesson);
  }
  lesson.heading("The lemma: the state is a function of the set of its terms");
  check_lemma(lesson);
  mistake == "no-limit" ? check_limit<AnyNumberOfTerms>(lesson) : check_limit<Exact>(lesson);
  mistake == "nan-digit" ? check_nan<DigitOfNan>(lesson) : check_nan<Exact>(lesson);
  lesson.heading(
      "The sums of a ring: 1, 2, 3, 8 ranks, three placements, in the order of the ring or any other");
  check_jobs(lesson, problems, mistake);
  if (mistake != Lesson::no_mistake) return lesson.finish(showed);
  lesson.heading("The agreement: the library's ring with exact sums");
  check_library(lesson, problem);
  lesson.heading("The cost");
  show_cost(lesson, seq);
  return lesson.finish(showed);
}

}  // namespace

int main(int argc, char** argv) {
  return serial_main([&] { return same_bits_lesson(argc, argv); });
}
