// Lesson 08, NUMBERS.md: the errors of a ring on threads of one process, against one device in double.
#pragma once

#include <array>
#include <cmath>
#include <numeric>
#include <vector>

#include "common/problem.hpp"
#include "ring_attention/cpu/attention_backward.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "rounding.hpp"

namespace ring_attention::lesson_08 {

/// What the errors are of. That of lse is absolute, because e^lse divides; the others are relative.
enum Quantity { of_out, of_lse, of_dq, of_dk, of_dv, quantities };
inline constexpr std::array quantity_names{"out", "lse", "dQ", "dK", "dV"};
using Errors = std::array<double, quantities>;

/// A ring whose partial results are kept in a type.
struct Row {
  const char* name;  ///< what is kept in the type
  Kept kept;
  Quantity shown;  ///< what it damages first
};
/// The relative error of the ring that rounds nothing.
inline constexpr Row nothing{"nothing (float)", {}, of_out};
/// The rows of the tables, for one type.
inline std::vector<Row> rows(const NumberType& type) {
  return {{"parts of a step", {.type = type, .parts = true}, of_out},
          {"out", {.type = type, .out = true}, of_out},
          {"lse", {.type = type, .lse = true}, of_lse},
          {"o, m, l", {.type = type, .state = true}, of_out},
          {"dQ", {.type = type, .dq = true}, of_dq},
          {"dK,dV", {.type = type, .dkdv = true}, of_dk},
          {"all", {type, true, true, true, false, true, true}, of_dk}};
}

/// Relative error of rounding once, root of the mean square: of numbers that are equally likely in each part of a binade,
/// weighted by their squares. The error is uniform in +-unit where x is in [1, 2).
inline double rounding_error(const NumberType& type) {
  return type.unit() * std::sqrt((1.0 / 3) / (1.5 / std::log(2.0)));
}

/// The error of the lse of N equal steps: after step j it is lse + log(j / N), with the spacing of the type there, and its
/// rounding error has the weight j / N in the last one.
inline double predicted_lse(const NumberType& type, int ranks, double lse) {
  double square = 0;
  for (int j = 1; j <= ranks; ++j) {
    const double share = static_cast<double>(j) / ranks;
    const double spacing = std::exp2(std::floor(std::log2(lse + std::log(share)))) * 2 * type.unit();
    square += share * share * spacing * spacing / 12;
  }
  return std::sqrt(square);
}

/// The error of row.shown that N equal steps of random numbers with mean 0 should give. \param lse  a typical one
///
/// The sum of j steps is sqrt(j) long and its rounding errors are independent: sum of j / N. A sum of positive numbers, as l,
/// is j long: sum of (j / N)^2.
inline double predicted(const Row& row, int ranks, double lse) {
  const double n = ranks, once = rounding_error(row.kept.type);
  const double walk = (n + 1) / 2, positive = (n + 1) * (2 * n + 1) / (6 * n);
  const Kept& kept = row.kept;
  const double of_the_lse = kept.lse ? predicted_lse(kept.type, ranks, lse) : 0;
  if (row.shown == of_lse) return of_the_lse;
  double squares = 0;  // in units of `once`
  if (kept.parts) squares += 1;
  if (kept.state) squares += walk + positive;
  if (kept.out || kept.dq || kept.dkdv) squares += walk;
  return std::hypot(once * std::sqrt(squares), of_the_lse);
}

/// Attention without a mask on random numbers, and what is right: one device in double.
struct Oracle {
  /// \param mean  added to all keys: it changes no softmax
  explicit Oracle(Index seq, std::uint64_t seed, double mean = 0)
      : problem{{1, 1, seq, 64}, {1, 1, seq, 64}, {default_scale(64), {}}, seed}, key_mean(mean) {
    const auto array = [&](std::uint64_t stream) { return converted<double>(rows(stream, whole(seq))); };
    const auto q = array(0), k = array(1), v = array(2), grad_out = array(3);
    forward = attention_forward<double>(q, k, v, problem.scoring);
    backward = attention_backward<double>({q, forward.out, forward.lse, grad_out, {}}, k, v, problem.scoring);
  }
  /// q, k, v or dO (0 to 3) at these positions.
  [[nodiscard]] Tensor<float> rows(std::uint64_t stream, const TokenRanges& ranges) const {
    Tensor<float> array = problem.make<float>(problem.q, stream, ranges);
    if (stream == 1)
      for (float& x : array.view().elements()) x += static_cast<float>(key_mean);
    return array;
  }
  [[nodiscard]] double typical_lse() const {
    const std::span<const double> all = forward.lse.view().elements();
    return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  }

  RandomProblem problem;
  double key_mean;
  AttentionResult<double> forward;
  Gradients<double> backward;
};

/// Squares of a rank: of the errors, and of what is right.
struct Squares {
  Errors error{}, right{};

  void add(Quantity quantity, const Tensor<float>& got, const Tensor<double>& want) {
    for (Index i = 0; i < got.size(); ++i) {
      error[quantity] += std::pow(got.data()[i] - want.data()[i], 2);
      right[quantity] += quantity == of_lse ? 1 : std::pow(want.data()[i], 2);
    }
  }
};

/// Forward and backward of one rank.
inline Squares squares_of_rank(const Oracle& oracle, LoopbackWorld& world, int rank, const Kept& kept) {
  const RandomProblem& problem = oracle.problem;
  const Placement placement(PlacementKind::contiguous, problem.q.seq, world.ranks());
  const TokenRanges ranges = placement.ranges(rank);
  const Tensor<float> q = oracle.rows(0, ranges), k = oracle.rows(1, ranges), v = oracle.rows(2, ranges),
                      grad_out = oracle.rows(3, ranges);
  const RoundedDevice device(kept);
  const RankGrid grid(rank, world.ranks(), 1);
  PeerLinks links(world.peers(rank), grid.ulysses, grid.ring);
  ContextParallel<float> attention(device, links,
                                   {grid, ring(), placement, problem.q, problem.kv, problem.scoring});
  const AttentionResult<float> result = attention.forward(q, k, v);
  const Gradients<float> gradients = attention.backward({q, result.out, result.lse, grad_out, {}}, k, v);

  Squares squares;
  squares.add(of_out, result.out, rows_at(oracle.forward.out, ranges));
  squares.add(of_lse, result.lse, rows_at(oracle.forward.lse, ranges));
  squares.add(of_dq, gradients.q, rows_at(oracle.backward.q, ranges));
  squares.add(of_dk, gradients.k, rows_at(oracle.backward.k, ranges));
  squares.add(of_dv, gradients.v, rows_at(oracle.backward.v, ranges));
  return squares;
}

/// Errors over all ranks, root of the mean square.
inline Errors errors_of(const Oracle& oracle, int ranks, const Kept& kept) {
  std::vector<Squares> of_ranks(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    of_ranks[static_cast<std::size_t>(rank)] = squares_of_rank(oracle, world, rank, kept);
  });
  Errors errors{};
  for (std::size_t i = 0; i < quantities; ++i) {
    double error = 0, right = 0;
    for (const Squares& squares : of_ranks) {
      error += squares.error[i];
      right += squares.right[i];
    }
    errors[i] = std::sqrt(error / right);
  }
  return errors;
}

}  // namespace ring_attention::lesson_08
