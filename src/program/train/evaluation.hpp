/// \file
/// What a trained model is asked, and how much of it can be known.
#pragma once

#include <functional>

#include "program/train/options.hpp"

namespace ring_attention {

/// Longer ones have more lines than keys.
inline constexpr Index longest_evaluation = 16384;

/// Sequences that no training has.
struct EvaluationSet {
  std::shared_ptr<const model::Task> task;
  /// Do the tokens from `first` on show the answer of the label at `position`?
  std::function<bool(Index sequence, Index position, Index first)> shows;
};

/// Like the sequences of a stage. Of lines 1/16 of the tokens are queries, so that most of the context is lines.
[[nodiscard]] EvaluationSet make_evaluation_set(const TrainOptions& options, const model::Stage& stage);

/// The labels of the sequences 0 .. sequences - 1.
[[nodiscard]] Index labels(const EvaluationSet& set, Index sequences);

/// The share of these labels whose answer is in the last `window` tokens, and of the others 1 / classes.
[[nodiscard]] double possible_accuracy(const EvaluationSet& set, Index sequences, Index window);

}  // namespace ring_attention
