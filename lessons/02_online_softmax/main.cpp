// Lesson 02: online softmax. The one new idea is a state (m, l) that grows: by a score, or by another state.
#include <algorithm>
#include <random>

#include "lse_forms.hpp"

using namespace ring_attention;

namespace {

using State = SoftmaxState<float>;  // m = max x, l = sum e^{x - m}; no score yet: m = -inf, l = 0
using lse_forms::minus_inf;

// A row of scores that counts how often one of them is read.
struct Scores {
  std::span<const float> row;
  mutable Index reads = 0;
  float operator[](std::size_t i) const { return ++reads, row[i]; }
};

// ---- The idea ------------------------------------------------------------------------------------------
// Moves a sum from maximum `from` to maximum `to`. With maximum -inf it holds no term (and -inf + inf is NaN).
using Move = float (*)(float from, float to);
float factor(float from, float to) { return from == minus_inf ? 0 : std::exp(from - to); }

// One pass: when the maximum grows, the sum so far is moved to the new one.
State online_pass(const Scores& x, Move move = factor) {
  State state;
  for (std::size_t i = 0; i < x.row.size(); ++i) {
    const float score = x[i];
    const float m = std::max(state.m, score);
    state = {m, state.l * move(state.m, m) + factor(score, m)};
  }
  return state;
}

// Two sets of scores: the same step, with a state in the place of a score.
State merged(const State& a, const State& b) {
  const float m = std::max(a.m, b.m);
  return {m, a.l * factor(a.m, m) + b.l * factor(b.m, m)};
}
// --------------------------------------------------------------------------------------------------------

// The classic mistake: the maximum grows and the sum stays.
float stay(float, float) { return 1; }

// A row of scores, for cutting at random places.
struct Row {
  Row(std::uint64_t seed, Index length) : x(Shape{1, 1, length, 1}), random(seed) {
    fill_random(x.view(), {seed, 0, 16, 20});  // one in 16 up to 35
    x.data()[0] = minus_inf;                   // and a masked one
  }
  // The states of some pieces that make up the row; a piece may be empty.
  std::vector<State> pieces(Move move) {
    std::vector<std::size_t> ends{0, x.view().elements().size()};
    for (auto n = random() % 40; n > 0; --n) ends.push_back(random() % (ends[1] + 1));
    std::sort(ends.begin(), ends.end());
    std::vector<State> states;
    for (std::size_t i = 1; i < ends.size(); ++i)
      states.push_back(online_pass({x.view().elements().subspan(ends[i - 1], ends[i] - ends[i - 1])}, move));
    return states;
  }
  Tensor<float> x;
  std::mt19937_64 random;
};

// Safe softmax needs the maximum first. Of a row in two parts it makes two rows, whose sums do not add up.
void show_failure(Lesson& lesson) {
  const std::vector<float> row{1, 2, 0, 6, 4, 5};
  const std::span<const float> x(row);
  const State a = online_pass({x.first(3)}), b = online_pass({x.last(3)}), all = online_pass({x});
  lesson.say(format("  scores 1 2 0 | 6 4 5 in two parts: m = %g, l = %.4f and m = %g, l = %.4f", double{a.m},
                    double{a.l}, double{b.m}, double{b.l}));
  lesson.say(format("  the two l added: %.4f, wrong by %.0f %%; the whole row: m = %g, l = %.4f",
                    double{a.l + b.l}, 100 * (double{a.l + b.l} / all.l - 1), double{all.m}, double{all.l}));
  lesson.record("added_l_relative_error", double{a.l + b.l} / all.l - 1);
}

// The state after each score of a short row.
void show_pass(Lesson& lesson, Move move) {
  const std::vector<float> row{1, 3, 2, 5, 4, 4, 7, 6, 0, 8, 3, 7};
  std::vector<double> scores(row.begin(), row.end()), maxima, factors, sums;
  Table table({"score", "m", "l is moved by", "l"});
  float m = minus_inf;
  for (std::size_t n = 1; n <= row.size(); ++n) {
    const State state = online_pass({std::span(row).first(n)}, move);
    factors.push_back(move(m, state.m));
    maxima.push_back(m = state.m);
    sums.push_back(state.l);
    table.row({format("%g", scores[n - 1]), format("%g", maxima.back()), format("%.4f", factors.back()),
               format("%.6f", sums.back())});
  }
  lesson.print(table);
  double right = 0;
  for (const double x : scores) right += std::exp(x - 8);
  lesson.check("l is the sum of all e^{x - 8}", std::abs(sums.back() - right) < 1e-6, format("%.6f", right));
  lesson.record("scores", scores);
  lesson.record("running_max", maxima);
  lesson.record("running_factor", factors);
  lesson.record("running_sum", sums);
}

// Associative (but for rounding), commutative and with an identity (to the bit): any order of merging will do.
void check_monoid(Lesson& lesson, Row& row, Move move) {
  const auto same_bits = [](const State& a, const State& b) { return a.m == b.m && a.l == b.l; };
  const State all = online_state<float>(row.x.view().elements());
  double spread = 0;
  bool same_m = true, commutes = true, identity = true;
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<State> states = row.pieces(move);
    while (states.size() > 1) {  // merges any two, until one is left
      std::swap(states[row.random() % states.size()], states.back());
      const State last = states.back();
      states.pop_back();
      State& other = states[row.random() % states.size()];
      commutes = commutes && same_bits(merged(other, last), merged(last, other));
      identity = identity && same_bits(merged(last, {}), last) && same_bits(merged({}, last), last);
      other = merged(other, last);
    }
    same_m = same_m && states[0].m == all.m;
    spread = std::max(spread, std::abs(double{states[0].l} / all.l - 1));
  }
  lesson.check("200 random splits in random order: the same m, to the bit", same_m);
  lesson.check("200 random splits in random order: the same l, but for rounding",
               spread <= attention_tolerance<float>(row.x.size(), all.m, 1).relative, human_error(spread));
  lesson.check("a merged with b is b merged with a, to the bit", commutes);
  lesson.check("merging with (-inf, 0) changes no bit", identity);
  lesson.record("l_spread", spread);
}

// The library's pass, and Eigen in double for p = e^{x - m} / l and lse = m + log l.
void check_agreement(Lesson& lesson, const Row& row, Move move) {
  const Scores scores{row.x.view().elements()};
  const State state = online_pass(scores, move), library = online_state<float>(scores.row);
  lesson.check("m and l, bit for bit the library's", state.m == library.m && state.l == library.l);

  const auto x = matrix(row.x.view(), 0, 0).cast<double>().eval();
  Tensor<float> p(row.x.shape());
  normalise(scores.row, state, p.view().elements());
  Tensor<double> want(p.shape());
  matrix(want.view(), 0, 0) = (x.array() - x.maxCoeff()).exp();
  const double l = matrix(want.view(), 0, 0).sum();
  matrix(want.view(), 0, 0) /= l;
  const Tolerance tolerance = attention_tolerance<float>(x.size(), x.maxCoeff(), 1);
  lesson.check("p agrees with Eigen in double", compare(p, want, tolerance));
  lesson.check("lse agrees with Eigen in double",
               compare(Tensor<float>(Shape{1, 1, 1, 1}, state.lse()),
                       Tensor<double>(Shape{1, 1, 1, 1}, x.maxCoeff() + std::log(l)), tolerance));

  const Index e = sizeof(float), passes = scores.reads / x.size() + 1;  // and one to write p
  lesson.heading("The cost");
  lesson.say("  safe, lesson 01:  the row is read 3 times, p is written once: 16 bytes a score");
  lesson.say(format("  online:           the row is read %d times, p is written once: %d bytes a score",
                    static_cast<int>(passes), static_cast<int>((passes + 1) * e)));
  lesson.check("one pass for (m, l), one for p", passes == 2);
  lesson.record("passes", std::vector<Index>{3, passes});
  lesson.record("bytes_per_score", std::vector<Index>{4 * e, (passes + 1) * e});
}

int online_softmax_lesson(int argc, char** argv) {
  Lesson lesson(
      "02", "online_softmax",
      "The maximum and the sum can be found in one pass, or piece by piece in any order: two numbers\n"
      "(m, l) remember all that the scores so far have to say.");
  Index length = 4096;
  lesson.options().option("--length", length, "Scores in the random row", {2});
  lesson.offer_mutants({{"no-rescale", "l stays as it is when the maximum grows"},
                        {"textbook-lse", "lse + log(1 + exp(lse_b - lse)) as printed"},
                        {"unguarded", "the sigmoid form without a test for lse = -inf"},
                        {"swapped-sign", "sigmoid(lse - lse_b) for sigmoid(lse_b - lse)"}});
  if (!lesson.parse(argc, argv)) return 0;
  const Move move = lesson.mutant("no-rescale") ? stay : factor;
  const lse_forms::Merge log1p =
      lesson.mutant("textbook-lse") ? lse_forms::textbook_form : lse_forms::log1p_form;
  const lse_forms::Merge sigmoid = lesson.mutant("unguarded")      ? lse_forms::unguarded_form
                                   : lesson.mutant("swapped-sign") ? lse_forms::swapped_form
                                                                   : lse_forms::sigmoid_form;
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
  lse_forms::check_chain(lesson, "log1p", log1p, merge_normalised<float>);
  lse_forms::check_chain(lesson, "sigmoid", sigmoid, merge_normalised_sigmoid<float>);
  lesson.heading("The agreement");
  check_agreement(lesson, row, move);
  return lesson.finish("softmax in two passes instead of three; any pieces of a row merge, in any order");
}

}  // namespace

int main(int argc, char** argv) {
  return serial_main([&] { return online_softmax_lesson(argc, argv); });
}
