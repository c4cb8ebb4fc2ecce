/// \file
/// `Shards`: the arrays of a problem, cut into the shards of the ranks; `Scorer`: the scores of a tile under some rules.
#pragma once

#include "diagnose/rules.hpp"

namespace ring_attention::diagnose {

/// a b, summed in float unless `sums` is finer.
[[nodiscard]] Matrix<double> product(const Matrix<double>& a, const Matrix<double>& b, Precision sums);

/// One array: [slots, dim] for each rank and head. A slot that holds no token is zero.
class Shards {
 public:
  Shards(const Slots& slots, Index heads, Index dim);
  Shards(const Slots& slots, const Tensor<double>& array);

  [[nodiscard]] Matrix<double>& at(int rank, Index head) {
    return parts_[static_cast<std::size_t>(rank * heads_ + head)];
  }
  [[nodiscard]] const Matrix<double>& at(int rank, Index head) const {
    return parts_[static_cast<std::size_t>(rank * heads_ + head)];
  }
  /// The array in the order of positions.
  [[nodiscard]] Tensor<double> joined(const Slots& slots, Index tokens) const;

 private:
  Index heads_;
  std::vector<Matrix<double>> parts_;
};

/// The scores of a tile: of a rank's queries and the keys of a step.
class Scorer {
 public:
  Scorer(const Problem& problem, const Rules& rules, const Slots& slots, Precision precision);

  [[nodiscard]] double scale() const { return scale_; }
  /// [slots, slots] for each query head; -inf hides a key.
  [[nodiscard]] std::vector<Matrix<double>> scores(int rank, const Step& step) const;
  [[nodiscard]] const Matrix<double>& queries(int rank, Index head) const { return q_.at(rank, head); }
  [[nodiscard]] const Matrix<double>& keys(const Step& step, Index head) const {
    return k_.at(step.k, rules_.kv_head(problem_, head));
  }
  [[nodiscard]] const Matrix<double>& values(const Step& step, Index head) const {
    return v_.at(step.v, rules_.kv_head(problem_, head));
  }
  [[nodiscard]] Steps steps(int rank) const;

 private:
  [[nodiscard]] bool sees(Pair pair) const;
  [[nodiscard]] double bias(Pair pair, Index head) const;

  const Problem& problem_;
  const Rules& rules_;
  const Slots& slots_;
  Precision sums_;
  double scale_;
  Shards q_, k_, v_;
};

}  // namespace ring_attention::diagnose
