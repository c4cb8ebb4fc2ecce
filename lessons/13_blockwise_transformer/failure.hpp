// Lesson 13, beside the idea: what a model answers that sees its own shard, a window, or all.
#pragma once

#include "ring_attention/ring/placement.hpp"
#include "training.hpp"

namespace ring_attention::lesson_13 {

/// Attention stays in the shard of the query: the shards are documents.
inline Mask own_shard(Index seq, int shards) {
  std::vector<Index> ends{0};
  const Placement contiguous(PlacementKind::contiguous, seq, shards);
  for (int rank = 0; rank < shards; ++rank) ends.push_back(ends.back() + contiguous.tokens(rank));
  Mask mask = Mask::causal();
  mask.documents = std::make_shared<Documents>(ends);
  return mask;
}
/// The query and the tokens before it, W in all.
inline Mask window(Index tokens) { return {tokens - 1, 0}; }

/// A way to look, and the share of the lines that is in sight: 1/N or W/S, less the queries, which are no lines.
struct Sight {
  std::string name;
  Mask mask;
  double expected;
};

inline std::vector<Sight> sights(Index seq) {
  constexpr double queries = 1.0 / query_share;
  std::vector<Sight> all{{"everything: the ring", Mask::causal(), 1}};
  for (const int shards : {2, 4, 8})
    all.push_back({format("its own shard, N = %d", shards), own_shard(seq, shards),
                   (1.0 / shards - queries) / (1 - queries)});
  for (const Index part : {8, 4, 2})
    all.push_back({format("a window, W = S/%d", static_cast<int>(part)), window(seq / part),
                   (1 / static_cast<double>(part) - queries / 2) / (1 - queries)});
  return all;
}

/// A line in sight is found, and another one is guessed, 1 in 64.
inline double closed_form(double in_sight) {
  return in_sight + (1 - in_sight) / static_cast<double>(LineRetrieval::values);
}

/// Collective.
inline void show_failure(Lesson& lesson, Trainee& trainee, const std::vector<Index>& lengths, Index labels) {
  Table table({"S", "the model sees", "lines in sight", "counted", "closed form", "accuracy"});
  double largest = 0;
  for (const Index seq : lengths)
    for (const Sight& sight : sights(seq)) {
      const double counted = Trainee::share_in_sight(seq, labels, sight.mask),
                   got = trainee.accuracy(seq, labels, sight.mask), want = closed_form(counted);
      const double error = std::abs(got - want);
      largest = error <= largest ? largest : error;
      table.row({std::to_string(seq), sight.name, format("%.4f", sight.expected), format("%.4f", counted),
                 format("%.4f", want), format("%.4f", got)});
    }
  lesson.print("sights", table);
  lesson.check("accuracy is p + (1 - p) / 64 of the share p in sight, within 0.015", largest <= 0.015,
               format("off by %.4f", largest));
}

/// Accuracy against context: everything in sight, its own shard of 4, a window of 1024 or 64 tokens.
inline std::vector<std::vector<double>> show_contexts(Lesson& lesson, Trainee& trainee,
                                                      const std::vector<Index>& lengths, Index fixed,
                                                      Index labels) {
  Table table({"S", "the ring", "own shard, N = 4", "closed form",
               format("window %d", static_cast<int>(fixed)), "closed form"});
  double largest = 0;
  bool right = true;
  std::vector<std::vector<double>> rows;
  for (const Index seq : lengths) {
    const Mask shard = own_shard(seq, 4), near = window(std::min(fixed, seq));
    const std::vector<double> row{static_cast<double>(seq),
                                  trainee.accuracy(seq, labels),
                                  trainee.accuracy(seq, labels, shard),
                                  closed_form(Trainee::share_in_sight(seq, labels, shard)),
                                  trainee.accuracy(seq, labels, near),
                                  closed_form(Trainee::share_in_sight(seq, labels, near))};
    std::vector<std::string> cells{std::to_string(seq)};
    for (std::size_t i = 1; i < row.size(); ++i) cells.push_back(format("%.4f", row[i]));
    table.row(cells);
    rows.push_back(row);
    for (const std::size_t i : {2U, 4U}) {
      const double error = std::abs(row[i] - row[i + 1]);
      largest = std::max(largest, error);
      right = right && error <= 0.015;
    }
  }
  lesson.print("contexts", table);
  lesson.check("the shard and the window answer as their closed forms say, within 0.015", right,
               format("off by %.4f", largest));
  return rows;
}

/// Two mistakes that this task cannot show, and where it can. Collective.
inline void show_blind_spots(Lesson& lesson, const Communicator& comm, Trainee& trainee, Index seq,
                             Index labels) {
  const auto inside = [](Examples& own, RankContext<float>&) {
    for (std::size_t i = own.token.size(); i-- > 0;)
      own.previous[i] = i % static_cast<std::size_t>(own.tokens) > 0 ? own.token[i - 1] : Task::none;
  };
  const auto local = [](Examples&, RankContext<float>& place) { place.tokens = whole(count(place.tokens)); };
  Table table({"accuracy", "contiguous", "striped"});
  std::vector<std::vector<double>> rows;
  const auto add = [&](const std::string& name, const Trainee::Change& change) {
    auto& row = rows.emplace_back();
    for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::striped})
      row.push_back(trainee.accuracy(seq, labels, Mask::causal(), kind, change));
    table.row({name, format("%.4f", row[0]), format("%.4f", row[1])});
  };
  add("right", {});
  add("the token before, inside a shard", inside);
  if (trainee.shape().rotary > 0) add("rotary positions of the shard", local);
  lesson.print("blind_spots", table);
  bool even = true;  // no shard cuts a line
  const Placement contiguous(PlacementKind::contiguous, seq, comm.size());
  for (int rank = 0; rank < comm.size(); ++rank) even = even && contiguous.tokens(rank) % 2 == 0;
  if (even)
    lesson.check("contiguous shards: the accuracy does not show the mistake",
                 std::abs(rows[1][0] - rows[0][0]) <= 0.01);
  if (comm.size() > 1) lesson.check("striped shards: it does", rows[1][1] <= 0.2);
}

}  // namespace ring_attention::lesson_13
