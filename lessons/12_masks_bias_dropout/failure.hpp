// Lesson 12, beside the idea: each rule alone, by local indices, on one rank and on many.
#pragma once

#include "weak_tests.hpp"

namespace ring_attention::lesson_12 {

struct Feature {
  const char* name;
  Setup setup;
  Mistake by_local_indices;
};

inline std::vector<Feature> features(Index ranks, std::uint64_t seed) {
  const Index seq = 16 * ranks, dim = 8, heads = 2;
  std::vector<Feature> all;
  const auto add = [&](const char* name, Mistake by_local_indices, Index keys, DenseBias bias, auto change) {
    Setup setup{{1, heads, seq, dim}, {1, heads, keys, dim}, no_rules(dim), bias, seed};
    change(setup.rules);
    all.push_back({name, setup, by_local_indices});
  };
  add("window of 8 keys", "local-mask", seq, DenseBias::none, [](Rules& r) { r.left = 7, r.right = 0; });
  add("three documents", "local-mask", seq, DenseBias::none,
      [&](Rules& r) { r.documents = {0, seq / 5, 3 * seq / 4}; });
  add("causal, twice the keys", "local-mask", 2 * seq, DenseBias::none, [&](Rules& r) {
    r.right = 0;
    r.offset = seq;
  });
  add("ALiBi", "local-alibi", seq, DenseBias::none, [&](Rules& r) { r.slopes = alibi_slopes(heads); });
  add("dense bias", "local-columns", seq, DenseBias::random, [](Rules&) {});
  add("dropout", "local-dropout", seq, DenseBias::none,
      [&](Rules& r) { r.dropout = {.probability = 0.25, .seed = seed}; });
  return all;
}

/// The error of out, relative to its norm over all ranks.
inline double error_of_out(const Communicator& comm, const Setup& setup, Mistake mistake) {
  const RankShare part(comm, setup);
  const Tensor<double> got = part.forward(part.own(), setup.rules, mistake).out;
  const Tensor<double> want = part.oracle().forward.out;
  std::array squares{0.0, 0.0};
  for (Index i = 0; i < want.size(); ++i) {
    const double difference = got.data()[i] - want.data()[i];
    squares[0] += difference * difference;
    squares[1] += want.data()[i] * want.data()[i];
  }
  sum_over_ranks(comm, std::span<double>(squares));
  return std::sqrt(squares[0] / squares[1]);
}

inline void show_failure(Lesson& lesson, const Communicator& comm) {
  const Communicator self(MPI_COMM_SELF);
  Table table({"by local indices", "one rank", counted(comm.size(), "rank") + ", contiguous", "striped"});
  std::vector<std::vector<double>> errors;
  double right = 0;
  const auto here = features(comm.size(), lesson.seed()), alone = features(1, lesson.seed());
  for (std::size_t i = 0; i < here.size(); ++i) {
    Setup setup = here[i].setup;
    auto& row = errors.emplace_back();
    row.push_back(max_over_ranks(comm, error_of_out(self, alone[i].setup, here[i].by_local_indices)));
    for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::striped}) {
      setup.kind = kind;
      row.push_back(error_of_out(comm, setup, here[i].by_local_indices));
      right = std::max(right, error_of_out(comm, setup, Lesson::no_mistake));
    }
    table.row({here[i].name, human_error(row[0]), human_error(row[1]), human_error(row[2])});
  }
  lesson.print("local_indices", table);
  lesson.check("on one rank each of them is right",
               std::ranges::all_of(errors, [](const auto& row) { return row[0] < 1e-13; }));
  if (comm.size() > 1)
    lesson.check("on more ranks each of them is wrong by more than 5 %",
                 std::ranges::all_of(errors, [](const auto& row) { return row[1] > 0.05 && row[2] > 0.05; }));
  lesson.check("by positions all are right on this number of ranks", right < 1e-13, human_error(right));
}

}  // namespace ring_attention::lesson_12
