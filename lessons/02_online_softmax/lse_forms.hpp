// Lesson 02, second half: merging two results that are already divided by their l.
#pragma once

#include "common/lesson.hpp"
#include "ring_attention/attention/partial.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/random.hpp"

namespace ring_attention::lse_forms {

// One row of a normalised result, with values of one column: out = sum e^{x - lse} v, lse = m + log l.
struct Result {
  float out, lse;
};
using Merge = Result (*)(const Result& a, const Result& b);
constexpr float minus_inf = negative_infinity<float>;
constexpr Result no_score{0, minus_inf};

// ---- The idea ------------------------------------------------------------------------------------------
// e^{lse} is the weight of a result: out = (e^{lse_a} out_a + e^{lse_b} out_b) / (e^{lse_a} + e^{lse_b}).
// Two ways to write it in which exp never sees a positive number.
inline Result log1p_form(const Result& a, const Result& b) {
  const float top = std::max(a.lse, b.lse);
  if (top == minus_inf) return a;  // neither has seen a score; -inf - (-inf) would be NaN
  const float lse = top + std::log1p(std::exp(-std::abs(a.lse - b.lse)));
  return {std::exp(a.lse - lse) * a.out + std::exp(b.lse - lse) * b.out, lse};
}

inline Result sigmoid_form(const Result& a, const Result& b) {
  if (b.lse == minus_inf) return a;
  if (a.lse == minus_inf) return b;  // the state in which every accumulation starts
  const float d = b.lse - a.lse;
  const float e = std::exp(-std::abs(d));
  const float sigmoid = (d < 0 ? e : 1) / (1 + e);               // 1 / (1 + e^-d)
  const float log_sigmoid = std::min(-d, 0.0F) - std::log1p(e);  // log(1 / (1 + e^d))
  return {a.out - sigmoid * (a.out - b.out), a.lse - log_sigmoid};
}
// --------------------------------------------------------------------------------------------------------

// As the mathematics is printed: exp overflows when b outweighs a, and -inf is not guarded.
inline Result textbook_form(const Result& a, const Result& b) {
  const float lse = a.lse + std::log(1 + std::exp(b.lse - a.lse));
  return {std::exp(a.lse - lse) * a.out + std::exp(b.lse - lse) * b.out, lse};
}

// The sigmoid form without its first two lines.
inline Result unguarded_form(const Result& a, const Result& b) {
  const float d = b.lse - a.lse;
  const float e = std::exp(-std::abs(d));
  return {a.out - (d < 0 ? e : 1) / (1 + e) * (a.out - b.out), a.lse - (std::min(-d, 0.0F) - std::log1p(e))};
}

// The sigmoid form with the difference the wrong way round: the lighter result gets the larger weight.
inline Result swapped_form(const Result& a, const Result& b) {
  return {sigmoid_form({a.out, b.lse}, {b.out, a.lse}).out, sigmoid_form(a, b).lse};
}

// Out 1 is at home, out 3 arrives and weighs more and more; the other way round; one has seen no score.
inline void show_table(Lesson& lesson) {
  const auto text = [](const Result& r) {
    const auto number = [](float x) { return std::isnan(x) ? "nan" : format("%.6g", double{x}); };
    return number(r.lse) + ", " + number(r.out);
  };
  Table table({"lse, out at home", "arriving", "textbook", "sigmoid, unguarded", "log1p", "sigmoid"});
  for (const auto& [a, b] : {std::pair<Result, Result>{{1, 0}, {3, 1}},
                             {{1, 0}, {3, 88}},
                             {{1, 0}, {3, 89}},
                             {{3, 89}, {1, 0}},
                             {no_score, {3, 2}},
                             {{1, 2}, no_score},
                             {no_score, no_score}})
    table.row({text(a), text(b), text(textbook_form(a, b)), text(unguarded_form(a, b)),
               text(log1p_form(a, b)), text(sigmoid_form(a, b))});
  lesson.print(table);
  float first = 88;
  while (std::isfinite(textbook_form({1, 0}, {3, first}).lse)) first = std::nextafter(first, 1000.0F);
  lesson.say(format("  the textbook form loses the row when the difference reaches %.9g", double{first}));
  lesson.record("textbook_overflow_from", double{first});

  std::vector<double> difference, textbook_lse, textbook_out, log1p_lse, log1p_out;
  for (float d = 0; d <= 120; d += 1) {
    const Result textbook = textbook_form({1, 0}, {3, d}), log1p = log1p_form({1, 0}, {3, d});
    difference.push_back(d);
    textbook_lse.push_back(textbook.lse);
    textbook_out.push_back(textbook.out);
    log1p_lse.push_back(log1p.lse);
    log1p_out.push_back(log1p.out);
  }
  lesson.record("lse_difference", difference);
  lesson.record("textbook_lse", textbook_lse);
  lesson.record("textbook_out", textbook_out);
  lesson.record("log1p_lse", log1p_lse);
  lesson.record("log1p_out", log1p_out);
}

// Two scores 0 and 1 with the values 10 and 20: (10 + 20 e) / (1 + e).
inline void check_sign(Lesson& lesson, Merge log1p, Merge sigmoid) {
  const Result a{10, 0}, b{20, 1};
  const double right = (10 + 20 * std::exp(1.0)) / (1 + std::exp(1.0)), swapped = swapped_form(a, b).out;
  lesson.say(
      format("  out 10 at lse 0 with out 20 at lse 1: %.2f; with the sign swapped: %.2f", right, swapped));
  lesson.check("the heavier result gets the larger weight",
               std::abs(log1p(a, b).out - right) < 1e-4 && std::abs(sigmoid(a, b).out - right) < 1e-4);
  lesson.record("right_out", right);
  lesson.record("swapped_sign_out", swapped);
}

// What arrives in many pieces; every fifth piece has seen no score.
struct Pieces {
  explicit Pieces(std::uint64_t seed) {
    fill_random(out.view(), {seed, 0});
    fill_random(lse.view(), {seed, 1, 2, 60});  // every second up to 104
    for (Index i = 0; i < lse.size(); i += 5) lse.data()[i] = minus_inf;
  }
  Tensor<float> out{Shape{1, 1, 1000, 1}}, lse{Shape{1, 1, 1000, 1}};
};

// The oracle, with Eigen in double: (out, lse).
inline Tensor<double> merged_at_once(const Pieces& pieces) {
  const auto wide = [](const Tensor<float>& x) {
    return matrix(x.view(), 0, 0).cast<double>().array().eval();
  };
  const double top = wide(pieces.lse).maxCoeff();
  const auto weight = (wide(pieces.lse) - top).exp().eval();
  Tensor<double> want(Shape{1, 1, 1, 2});
  want.data()[0] = (weight * wide(pieces.out)).sum() / weight.sum();
  want.data()[1] = top + std::log(weight.sum());
  return want;
}

// One piece after the other, from the state "no score yet": against the library's form and the oracle.
inline void check_chain(Lesson& lesson, const std::string& name, Merge form,
                        void (*library)(AttentionResult<float>&, const AttentionResult<float>&)) {
  const Pieces pieces(lesson.seed());
  const Shape one{1, 1, 1, 1};
  const auto attended = [&](const Result& r) { return AttentionResult<float>{{one, r.out}, {one, r.lse}}; };
  Result all = no_score;
  AttentionResult<float> theirs = attended(no_score);
  for (Index i = 0; i < pieces.out.size(); ++i) {
    const Result piece{pieces.out.data()[i], pieces.lse.data()[i]};
    all = form(all, piece);
    library(theirs, attended(piece));
  }
  const AttentionResult<float> ours = attended(all);
  lesson.check(name + " form, bit for bit the library's",
               bitwise_equal(ours.out, theirs.out) && bitwise_equal(ours.lse, theirs.lse));
  Tensor<float> got(Shape{1, 1, 1, 2});
  got.data()[0] = all.out;
  got.data()[1] = all.lse;
  lesson.check(name + " form, 1000 pieces: agrees with Eigen in double",
               compare(got, merged_at_once(pieces), attention_tolerance<float>(pieces.out.size(), 104, 2)));
}

}  // namespace ring_attention::lse_forms
