// Lesson 12, beside the idea: the mask of the dropout as random numbers.
#pragma once

#include "weak_tests.hpp"

namespace ring_attention::lesson_12 {

/// 1 for a pair that is kept, of `rows` queries and `keys` keys.
inline std::vector<std::vector<Index>> mask(const Rules& rules, Index rows, Index keys,
                                            const Pair& first = {}) {
  std::vector<std::vector<Index>> kept;
  for (Index i = 0; i < rows; ++i) {
    auto& row = kept.emplace_back();
    for (Index j = 0; j < keys; ++j) {
      const Pair pair{first.batch, first.head, first.query + i, first.key + j};
      row.push_back(lesson::factor(rules, pair) > 0 ? 1 : 0);
    }
  }
  return kept;
}

/// How often two masks of p = 1/2 agree, in standard deviations from one half.
inline double agreement(const std::vector<std::vector<Index>>& a, const std::vector<std::vector<Index>>& b) {
  double equal = 0, pairs = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a[i].size(); ++j) {
      equal += a[i][j] == b[i][j] ? 1 : 0;
      pairs += 1;
    }
  return (equal - pairs / 2) / std::sqrt(pairs / 4);
}

inline Rules only_dropout(double probability, std::uint64_t seed) {
  Rules rules = no_rules(1);
  rules.dropout = {.probability = probability, .seed = seed};
  return rules;
}

/// The masks of the next key, query, head, batch, layer, step and seed: in sigma.
inline void check_neighbours(Lesson& lesson) {
  constexpr Index size = 256;
  const Rules rules = only_dropout(0.5, lesson.seed());
  const auto one = mask(rules, size, size);
  std::vector<double> sigmas;
  Table table({"the mask of the next", "agrees, in sigma from one half"});
  const auto add = [&](const char* of, const Rules& other, const Pair& first) {
    sigmas.push_back(agreement(one, mask(other, size, size, first)));
    table.row({of, format("%+.2f", sigmas.back())});
  };
  const auto with = [&](auto change) {
    Rules other = rules;
    change(other.dropout);
    return other;
  };
  add("key", rules, {.key = 1});
  add("query", rules, {.query = 1});
  add("head", rules, {.head = 1});
  add("sequence of the batch", rules, {.batch = 1});
  add("layer", with([](Dropout& d) { ++d.layer; }), {});
  add("step of the training", with([](Dropout& d) { ++d.step; }), {});
  add("seed", with([](Dropout& d) { ++d.seed; }), {});
  lesson.print("neighbours", table);
  lesson.check("neighbours agree in half of the pairs, within 5 sigma",
               std::ranges::all_of(sigmas, [](double sigma) { return std::abs(sigma) <= 5; }));
}

inline void show_statistics(Lesson& lesson, const Communicator& comm) {
  const Rules half = only_dropout(0.5, lesson.seed());

  constexpr double p = 0.1;
  constexpr Index rows = 2048, keys = 512;
  double sum = 0, variance = 0;  // of the rows, in sigma
  for (const auto& row : mask(only_dropout(p, lesson.seed()), rows, keys)) {
    const auto kept = static_cast<double>(std::ranges::count(row, Index{1}));
    const double sigma = (kept - keys * (1 - p)) / std::sqrt(keys * p * (1 - p));
    sum += sigma;
    variance += sigma * sigma / static_cast<double>(rows);
  }
  const double mean = sum / std::sqrt(static_cast<double>(rows));
  lesson.check("p = 0.1: the share of dropped pairs is p within 5 sigma, of 2048 x 512", std::abs(mean) <= 5,
               format("%+.2f sigma", mean));
  lesson.check("the shares of the rows scatter as those of independent pairs",
               std::abs(variance - 1) <= 5 * std::sqrt(2.0 / rows), format("variance %.3f for 1", variance));
  check_neighbours(lesson);

  constexpr Index heads = 2;
  const Index seq = 8 * comm.size() + 3;
  bool equal = true;
  for (const PlacementKind kind :
       {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag}) {
    const Tensor<double> read = mask_of(comm, half.dropout, Lesson::no_mistake, seq, heads, kind);
    const std::vector<Index> queries = positions(Placement(kind, seq, comm.size()).ranges(comm.rank()));
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < std::ssize(queries); ++i)
        for (Index key = 0; key < seq; ++key) {
          const double factor = lesson::factor(half, {0, h, queries[static_cast<std::size_t>(i)], key});
          equal = equal && (read.view()(0, h, i, key) > 0) == (factor > 0);
        }
  }
  lesson.check("the mask, read through the ring with one-hot V, is this function for every placement", equal);
}

}  // namespace ring_attention::lesson_12
