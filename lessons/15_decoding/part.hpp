// Lesson 15, beside the idea: one rank of a job that decodes, right or with a mistake; the oracle.
#pragma once

#include <cmath>
#include <iterator>
#include <numbers>

#include "common/problem.hpp"
#include "mistakes.hpp"
#include "mpi_op.hpp"

namespace ring_attention::lesson_15 {

/// RoPE (Su et al., arXiv 2104.09864): pairs of numbers are turned by an angle that grows with the position.
inline void rotate(std::span<double> x, Index position) {
  for (std::size_t i = 0; i + 1 < x.size(); i += 2) {
    const double angle = static_cast<double>(position) *
                         std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(x.size()));
    const double a = x[i], b = x[i + 1];
    x[i] = a * std::cos(angle) - b * std::sin(angle);
    x[i + 1] = a * std::sin(angle) + b * std::cos(angle);
  }
}
inline void rotate_rows(const Tensor<double>& x, View<double> to, const std::vector<Index>& by) {
  std::ranges::copy(x.view().elements(), to.data());
  for (Index h = 0; h < x.shape().heads; ++h)
    for (Index s = 0; s < x.shape().seq; ++s) rotate(to.row(0, h, s), by[static_cast<std::size_t>(s)]);
}

struct Setup {
  Shape q, kv;  // of all tokens
  Index prompt;
  std::uint64_t seed = 1;
  PlacementKind kind = PlacementKind::contiguous;
  bool zero_query = false;
};

/// Of the decoded tokens, the same on all ranks when all is right.
struct Result {
  AttentionResult<double> rows;
  Index held = 0;  // tokens of the fullest rank at the end
  TransportStatistics sent;
};

enum class Merge { in_rank_order, by_mpi };

class RankShare {
 public:
  RankShare(const Communicator& comm, const Setup& setup)
      : comm_(comm), setup_(setup), q_(setup.q), k_(setup.kv), v_(setup.kv) {
    if (!setup.zero_query) fill_random(q_.view(), {.seed = setup.seed, .stream = 0, .spike_every = 8});
    fill_random(k_.view(), {.seed = setup.seed, .stream = 1, .spike_every = 8});
    fill_random(v_.view(), {.seed = setup.seed, .stream = 2});
  }

  [[nodiscard]] Index decoded() const { return setup_.q.seq - setup_.prompt; }
  [[nodiscard]] double scale() const { return default_scale(setup_.q.dim); }
  [[nodiscard]] Tensor<double> rotated_queries() const { return rotated(q_); }
  [[nodiscard]] Tensor<double> rotated_keys() const { return rotated(k_); }
  [[nodiscard]] const Tensor<double>& values() const { return v_; }

  /// One causal forward: the rows of the decoded tokens, dense and in double.
  [[nodiscard]] Reference oracle() const {
    const TokenRanges rows{{setup_.prompt, 1, decoded()}};
    return reference_forward(rows_at(rotated(q_), rows), rotated(k_), v_, {scale(), Mask::causal()}, rows);
  }

  [[nodiscard]] Result run(Mistake mistake, Merge how = Merge::in_rank_order) const {
    MpiAllToAll link(comm_);
    std::vector<Index> held =
        positions(Placement(setup_.kind, setup_.prompt, comm_.size()).ranges(comm_.rank()));
    const Shape rows = setup_.q.with_seq(decoded());
    Result outcome{{Tensor<double>(rows), Tensor<double>(rows.per_row())}, 0, {}};
    const Tensor<double> q = rotated(q_);
    for (Index token = 0; token < decoded(); ++token) {
      const Index position = setup_.prompt + token;
      const int keeper = mistake == "one-keeper" ? comm_.size() - 1 : lesson::keeper(position, comm_.size());
      const auto append = [&] {
        if (keeper == comm_.rank()) held.push_back(position);
      };
      if (mistake != "late-key") append();
      std::vector<double> states = attend_to(held, q, position, mistake);
      broken(states, mistake);
      states = how == Merge::by_mpi ? merged_by_mpi(comm_, std::move(states), rows.dim)
                                    : lesson::over_all_ranks(link, states, rows.dim);
      for (Index h = 0; h < rows.heads; ++h) finish(states, h, outcome.rows, token);
      if (mistake == "late-key") append();
    }
    outcome.held = -min_over_ranks(comm_, -std::ssize(held));
    outcome.sent = link.statistics();
    return outcome;
  }

 private:
  [[nodiscard]] Tensor<double> rotated(const Tensor<double>& x) const {
    Tensor<double> y(x.shape());
    rotate_rows(x, y.view(), positions(whole(x.shape().seq)));
    return y;
  }

  /// A row of dim + 2 numbers for each query head, over the keys at `held`, each read once for all heads of its group.
  [[nodiscard]] std::vector<double> attend_to(const std::vector<Index>& held, const Tensor<double>& q,
                                              Index position, Mistake mistake) const {
    const Index dim = setup_.q.dim, group = setup_.q.heads / setup_.kv.heads;
    std::vector<double> states;
    for (Index h = 0; h < setup_.q.heads; ++h)
      std::ranges::copy(lesson::no_key(dim), std::back_inserter(states));
    for (std::size_t i = 0; i < held.size(); ++i)
      for (Index kv_head = 0; kv_head < setup_.kv.heads; ++kv_head) {
        const auto row = k_.view().row(0, kv_head, held[i]);
        std::vector<double> k(row.begin(), row.end());
        rotate(k, mistake == "local-rotary" ? static_cast<Index>(i) : held[i]);
        for (Index h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          const auto query = q.view().row(0, h, position);
          double s = 0;
          for (std::size_t d = 0; d < k.size(); ++d) s += query[d] * k[d];
          lesson::attend(row_of(states, h), scale() * s, v_.view().row(0, kv_head, held[i]));
        }
      }
    return states;
  }

  [[nodiscard]] std::span<double> row_of(std::vector<double>& states, Index head) const {
    const auto row = static_cast<std::size_t>(setup_.q.dim) + 2;
    return std::span(states).subspan(static_cast<std::size_t>(head) * row, row);
  }

  /// What a mistake does to the states of this rank before they are merged.
  void broken(std::vector<double>& states, Mistake mistake) const {
    for (Index h = 0; h < setup_.q.heads; ++h) {
      const std::span<double> row = row_of(states, h);
      double &m = row[row.size() - 2], &l = row.back();
      if (mistake == "log2-lse") m /= std::numbers::ln2;
      if (mistake == "empty-shard" && l == 0) m = -m;
      if (mistake == "not-rescaled") m = max_over_ranks(comm_, m);
      if (mistake != "average") continue;
      for (double& o : row.first(row.size() - 2)) o = l > 0 ? o / l : 0;
      m = 0;
      l = 1;
    }
  }

  /// out = o / l, lse = m + log l.
  void finish(std::vector<double>& states, Index head, AttentionResult<double>& rows, Index token) const {
    const std::span<const double> row = row_of(states, head);
    const SoftmaxState<double> sum{row[row.size() - 2], row.back()};
    for (std::size_t d = 0; d + 2 < row.size(); ++d)
      rows.out.view()(0, head, token, static_cast<Index>(d)) = row[d] / sum.l;
    rows.lse.view()(0, head, token) = sum.lse();
  }

  const Communicator& comm_;
  Setup setup_;
  Tensor<double> q_, k_, v_;  // of all tokens; a rank takes its own
};

}  // namespace ring_attention::lesson_15
