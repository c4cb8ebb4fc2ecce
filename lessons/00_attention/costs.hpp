// Lesson 00, beside the idea: what its formula costs, counted, and for sequences that do not fit.
#pragma once

#include LESSON_IDEA

#include "common/lesson.hpp"
#include "common/random_problem.hpp"

namespace ring_attention::costs {

using lesson::Rows;

// A number that counts how often it is multiplied.
struct Counted {
  double value;
  inline static Index products = 0;

  Counted(double x = 0) : value(x) {}  // NOLINT: implicit on purpose
  friend Counted operator*(Counted a, Counted b) {
    ++products;
    return a.value * b.value;
  }
  friend Counted operator/(Counted a, Counted b) { return a.value / b.value; }
  Counted& operator+=(Counted other) {
    value += other.value;
    return *this;
  }
  friend Counted exp(Counted x) { return std::exp(x.value); }
};

// Random numbers with mean 0 and variance 1: the rows of stream 0 (queries), 1 (keys), 2 (values).
template <class T>
Rows<T> random_rows(const Lesson& lesson, std::uint64_t stream, Index seq, Index dim) {
  Tensor<double> array({1, 1, seq, dim});
  fill_random(array.view(), {.seed = lesson.seed(), .stream = stream}, array.shape(), whole(seq));
  Rows<T> rows;
  for (Index i = 0; i < seq; ++i) {
    const std::span<const double> row = array.view().row(0, 0, i);
    rows.emplace_back(row.begin(), row.end());
  }
  return rows;
}

// A product q . k of D numbers with variance 1 has the variance D. The scale gives it the variance 1, for every D.
inline void show_scale(Lesson& lesson, const lesson::Choices& choices) {
  Table table({"D", "q . k, deviation", "scores, deviation", "largest weight, no scale", "with scale"});
  bool near_one = true;
  for (const Index dim : {16, 64, 256}) {
    constexpr Index seq = 64;
    const auto q = random_rows<double>(lesson, 0, seq, dim), k = random_rows<double>(lesson, 1, seq, dim);
    std::vector<double> cells;
    std::vector<double> largest;
    for (const lesson::Choices& scores : {lesson::Choices{.scale = false}, choices}) {
      const auto run = lesson::attention(q, k, k, false, scores);
      double squares = 0, sum = 0;
      for (Index i = 0; i < seq; ++i) {
        for (const double s : run.scores[static_cast<std::size_t>(i)]) squares += s * s;
        sum += std::ranges::max(run.weights[static_cast<std::size_t>(i)]);
      }
      cells.push_back(std::sqrt(squares / (seq * seq)));
      largest.push_back(sum / seq);
    }
    near_one = near_one && std::abs(cells[1] - 1) <= 0.1;
    table.row({std::to_string(dim), format("%.2f", cells[0]), format("%.2f", cells[1]),
               format("%.2f", largest[0]), format("%.2f", largest[1])});
  }
  lesson.print("scale", table);
  lesson.check("scores have the deviation 1 for every D, within 10 %", near_one);
}

// The two counts of the formula: S x S scores, and 2 S S D products, each with an addition.
inline void check_formulas(Lesson& lesson) {
  constexpr Index seq = 48, dim = 8;
  const auto rows = [&](std::uint64_t stream) { return random_rows<Counted>(lesson, stream, seq, dim); };
  Counted::products = 0;
  const auto run = lesson::attention(rows(0), rows(1), rows(2), false);
  Index scores = 0;
  for (const auto& row : run.scores) scores += std::ssize(row);
  lesson.check("counted: S S scores", scores == seq * seq, std::to_string(scores));
  lesson.check("counted: 2 S S D products, each with an addition: 4 S S D FLOP",
               Counted::products == 2 * seq * seq * dim, std::to_string(Counted::products));
}

// One layer of a model: 32 heads of D = 128, numbers of 2 bytes.
inline void show_costs(Lesson& lesson) {
  constexpr Index heads = 32, dim = 128, bytes = 2;
  constexpr double flops_per_second = 1e15;
  Table table({"S", "q, k, v, out", "scores of a head", "scores of all heads", "FLOP", "at 10^15 FLOP/s"});
  for (const Index seq : {1000, 10000, 100000, 1000000}) {
    const Index scores = heads * seq * seq * bytes;
    const double flops = 4.0 * static_cast<double>(heads * seq * seq * dim);
    table.row({std::to_string(seq), human_bytes(4 * heads * seq * dim * bytes), human_bytes(scores / heads),
               human_bytes(scores), format("%.1e", flops), human_seconds(flops / flops_per_second)});
  }
  lesson.print("costs", table);
  lesson.say("  One layer, 32 heads, D = 128, 2 bytes a number, no mask. A model has dozens of layers.");
}

}  // namespace ring_attention::costs
