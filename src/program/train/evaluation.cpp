#include "program/train/evaluation.hpp"

#include <algorithm>

#include "model/bandit.hpp"
#include "model/line_retrieval.hpp"

namespace ring_attention {
namespace {

/// Calls visit(sequence, position) for all labels.
void for_each_label(const EvaluationSet& set, Index sequences, auto visit) {
  for (Index sequence = 0; sequence < sequences; ++sequence)
    for (Index position = 0; position < set.task->seq(); ++position)
      if (set.task->label(sequence, position) != model::Task::none) visit(sequence, position);
}

}  // namespace

EvaluationSet make_evaluation_set(const TrainOptions& options, const model::Stage& stage) {
  const std::uint64_t seed = static_cast<std::uint64_t>(options.seed) + (std::uint64_t{1} << 63U);
  if (options.task == "lines") {
    const auto lines = std::make_shared<const model::LineRetrieval>(seed, stage.seq, 16);
    return {lines, [lines](Index sequence, Index position, Index first) {
              return lines->value_position(lines->asked_line(sequence, position)) >= first;
            }};
  }
  const auto bandit = std::make_shared<const model::NeedleBandit>(seed, stage.seq, stage.arms);
  return {bandit, [bandit](Index sequence, Index position, Index first) {
            constexpr Index paid = model::NeedleBandit::all_arms + 1;
            for (Index at = position; at >= first; --at)
              if (bandit->token(sequence, at) == paid) return true;
            return false;
          }};
}

Index labels(const EvaluationSet& set, Index sequences) {
  Index count = 0;
  for_each_label(set, sequences, [&](Index, Index) { ++count; });
  return count;
}

double possible_accuracy(const EvaluationSet& set, Index sequences, Index window) {
  double all = 0, shown = 0;
  for_each_label(set, sequences, [&](Index sequence, Index position) {
    ++all;
    shown += set.shows(sequence, position, std::max<Index>(0, position - window + 1)) ? 1 : 0;
  });
  const double share = shown / all;
  return share + (1 - share) / static_cast<double>(set.task->classes());
}

}  // namespace ring_attention
