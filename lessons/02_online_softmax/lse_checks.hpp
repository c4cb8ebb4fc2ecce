// Lesson 02, beside its second idea: the forms that look right, and what checks say of all four.
#pragma once

#include "common/lesson.hpp"
#include "lse_forms.hpp"
#include "ring_attention/attention/partial.hpp"
#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/random.hpp"

namespace ring_attention::lesson::lse_forms {

using Result = lesson::Result<float>;
using Merge = Result (*)(const Result& a, const Result& b);
inline constexpr Result no_score;

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

// The sigmoid form with the sign of the difference exchanged: the lighter result gets the larger weight.
inline Result swapped_form(const Result& a, const Result& b) {
  return {sigmoid_form<float>({a.out, b.lse}, {b.out, a.lse}).out, sigmoid_form(a, b).lse};
}

// The result so far has out 1, the piece that arrives has out 3 and an lse that grows; the other way round; one of them
// has seen no score.
inline void show_table(Lesson& lesson) {
  const auto text = [](const Result& r) {
    const auto number = [](float x) { return std::isnan(x) ? "nan" : format("%.6g", double{x}); };
    return number(r.lse) + ", " + number(r.out);
  };
  Table table({"lse, out so far", "arriving", "textbook", "sigmoid, unguarded", "log1p", "sigmoid"});
  for (const auto& [a, b] : {std::pair<Result, Result>{{1, 0}, {3, 1}},
                             {{1, 0}, {3, 88}},
                             {{1, 0}, {3, 89}},
                             {{3, 89}, {1, 0}},
                             {no_score, {3, 2}},
                             {{1, 2}, no_score},
                             {no_score, no_score}})
    table.row({text(a), text(b), text(textbook_form(a, b)), text(unguarded_form(a, b)),
               text(log1p_form(a, b)), text(sigmoid_form(a, b))});
  lesson.print("merges", table);
  float first = 88;
  while (std::isfinite(textbook_form({1, 0}, {3, first}).lse)) first = std::nextafter(first, 1000.0F);
  lesson.say(format("  the textbook form loses the row when the difference reaches %.9g", double{first}));
}

// Two scores 0 and 1 with the values 10 and 20: (10 + 20 e) / (1 + e).
inline void check_sign(Lesson& lesson, Merge log1p, Merge sigmoid) {
  const Result a{10, 0}, b{20, 1};
  const double right = (10 + 20 * std::exp(1.0)) / (1 + std::exp(1.0)), swapped = swapped_form(a, b).out;
  lesson.say(
      format("  out 10 at lse 0 with out 20 at lse 1: %.2f; with the sign swapped: %.2f", right, swapped));
  lesson.check("the heavier result gets the larger weight",
               std::abs(log1p(a, b).out - right) < 1e-4 && std::abs(sigmoid(a, b).out - right) < 1e-4);
}

// What arrives in many pieces; every fifth piece has seen no score.
struct Pieces {
  explicit Pieces(std::uint64_t seed) {
    fill_random(out.view(), {seed, 0});
    fill_random(lse.view(), {seed, 1, 2, 60});  // every second up to 104
    for (Index i = 0; i < lse.size(); i += 5) lse.data()[i] = negative_infinity<float>;
  }
  Tensor<float> out{Shape{1, 1, 1000, 1}}, lse{Shape{1, 1, 1000, 1}};
};

// The reference, with Eigen in double: (out, lse).
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

// The library's merge of (o, m, l): a normalised result is the state with o = out, m = lse and l = 1.
inline Result merged_by_library(const Pieces& pieces) {
  const Shape one{1, 1, 1, 1};
  auto all = Partial<float>::empty(one);
  for (Index i = 0; i < pieces.out.size(); ++i) {
    const float lse = pieces.lse.data()[i];
    if (lse != negative_infinity<float>)
      merge(all, Partial<float>{{one, pieces.out.data()[i]}, {one, lse}, {one, 1}});
  }
  const AttentionResult<float> result = finish(std::move(all));
  return {result.out.data()[0], result.lse.data()[0]};
}

// One piece after the other, from the state "no score yet": against the library's states and the reference. Neither
// form has a counterpart with the same bits: the library merges (o, m, l) and divides once, at the end.
inline void check_chain(Lesson& lesson, const std::string& name, Merge form) {
  const Pieces pieces(lesson.seed());
  Result all;
  for (Index i = 0; i < pieces.out.size(); ++i) all = form(all, {pieces.out.data()[i], pieces.lse.data()[i]});
  const auto tensor = [](const Result& result) {
    Tensor<float> pair(Shape{1, 1, 1, 2});
    pair.data()[0] = result.out;
    pair.data()[1] = result.lse;
    return pair;
  };
  const Tensor<float> got = tensor(all);
  const Tolerance tolerance = attention_tolerance<float>(pieces.out.size(), 104, 2);
  lesson.check(name + " form, 1000 pieces: agrees with the library's merge of (o, m, l)",
               compare(got, tensor(merged_by_library(pieces)), tolerance).ok);
  lesson.check(name + " form, 1000 pieces: agrees with Eigen in double",
               compare(got, merged_at_once(pieces), tolerance));
}

}  // namespace ring_attention::lesson::lse_forms
