/// \file
/// `Examination`: the forward of some cases, then their backward, against right results, single mistakes and pairs.
#pragma once

#include "diagnose/candidates.hpp"
#include "diagnose/diagnosis.hpp"

namespace ring_attention::diagnose {

class Examination {
 public:
  /// All of them outlive it.
  Examination(std::span<const Evidence> cases, const Options& options, Simulations& simulations);

  /// With pairs of mistakes only if asked for: they take ten times as long, or more.
  void run(bool with_pairs);

  [[nodiscard]] const Pass& forward() const { return forward_; }
  [[nodiscard]] const Pass& backward() const { return backward_; }

 private:
  void for_precisions(Pass& pass, const auto& attempt);
  [[nodiscard]] std::vector<Explanation> judged(const Search& search, std::vector<Explanation> candidates,
                                                const char* what = nullptr) const;
  void examine_forward(bool with_pairs);
  void examine_backward(bool with_pairs);
  /// Is the backward right for what a wrong forward returned, or wrong by the same mistake?
  [[nodiscard]] bool follows(const std::vector<Explanation>& forwards, Precision precision, bool spread);
  /// Has it one mistake more, or two?
  [[nodiscard]] bool has_its_own(const std::vector<Explanation>& forwards, Precision precision, bool spread,
                                 bool with_pairs);
  [[nodiscard]] std::vector<Explanation> singles_after(const Explanation& forward) const;

  std::span<const Evidence> cases_;
  const Options& options_;
  Simulations& simulations_;
  int ring_;
  bool has_forward_ = false, has_backward_ = false;
  Pass forward_, backward_;
};

}  // namespace ring_attention::diagnose
