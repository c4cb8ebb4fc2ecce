/// \file
/// The needle bandit: which arm pays, from trajectories of random pulls. More trajectories in the context answer more.
///
/// A trajectory is 8 pulls `arm reward`. One arm of A pays; the best policy knows it when it was pulled. So the best
/// accuracy is known exactly, for every length. After the in-context reinforcement learning of Ring Attention,
/// arXiv 2310.01889, table 5.
#pragma once

#include "model/task.hpp"

namespace ring_attention::model {

/// A sequence plays `arms` of the 512 arm tokens.
class NeedleBandit final : public Task {
 public:
  static constexpr int arm_bits = 9;
  static constexpr Index all_arms = Index{1} << arm_bits, pulls = 8, tokens_of_trajectory = 2 * pulls;

  /// Where the labels are.
  enum class Labels {
    every_trajectory,  ///< at its last reward: for training
    last               ///< at the last reward of the sequence: for evaluation
  };

  /// \throws InputError unless S is a multiple of 16 and arms is 1 .. 512
  NeedleBandit(std::uint64_t seed, Index seq, Index arms = all_arms,
               Labels labels = Labels::every_trajectory);

  [[nodiscard]] Index vocabulary() const override { return all_arms + 2; }
  [[nodiscard]] Index first_class() const override { return 0; }
  [[nodiscard]] Index classes() const override { return all_arms; }
  [[nodiscard]] Index seq() const override { return seq_; }
  [[nodiscard]] Index token(Index sequence, Index position) const override;
  [[nodiscard]] Index label(Index sequence, Index position) const override;

  /// The arm that pays.
  [[nodiscard]] Index needle(Index sequence) const;
  /// Was the paying arm pulled in the tokens before `end`?
  [[nodiscard]] bool seen(Index sequence, Index end) const;

 private:
  [[nodiscard]] Index arm(Index sequence, Index pull) const;

  std::uint64_t seed_;
  Index seq_, arms_;
  Labels labels_;
};

/// 400 steps of 4096 tokens: 16, 64, 256 and 512 arms in play, at lengths from 64 to 4096.
[[nodiscard]] Curriculum bandit_curriculum();

}  // namespace ring_attention::model
