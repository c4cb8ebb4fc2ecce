/// \file
/// Line retrieval: lines `key value`, then queries `key ask`; the answer is the value of the line with this key.
///
/// The answer may be anywhere before the query, so a model that sees a part of the sequence answers what is in that part.
/// After LongEval's "lines" (Li et al., 2023), the task of Ring Attention, arXiv 2310.01889, 5.4.
#pragma once

#include "model/task.hpp"

namespace ring_attention::model {

/// A sequence of S tokens ends with 2 Q of queries, after 2 L of lines. No key is twice in a sequence. A line may be
/// asked twice; the sequence never shows the answer. An odd S begins with one `ask` token.
class LineRetrieval final : public Task {
 public:
  static constexpr int key_bits = 13;
  static constexpr Index keys = Index{1} << key_bits, values = 64;

  /// \param query_share  1/n of the tokens are queries: Q = S / (2 n), at least 1. 4 for training, 16 for evaluation
  /// \throws InputError when S is too short for a line and a query, or needs more keys than there are
  LineRetrieval(std::uint64_t seed, Index seq, Index query_share = 4);

  [[nodiscard]] Index vocabulary() const override { return keys + values + 1; }
  [[nodiscard]] Index first_class() const override { return keys; }
  [[nodiscard]] Index classes() const override { return values; }
  [[nodiscard]] Index seq() const override { return seq_; }
  [[nodiscard]] Index token(Index sequence, Index position) const override;
  [[nodiscard]] Index label(Index sequence, Index position) const override;

  [[nodiscard]] Index lines() const { return lines_; }
  [[nodiscard]] Index queries() const { return queries_; }
  /// The line that the query at this position asks for.
  [[nodiscard]] Index asked_line(Index sequence, Index position) const;
  /// The position of the value of a line.
  [[nodiscard]] Index value_position(Index line) const {
    return seq_ - 2 * queries_ - 2 * (lines_ - line) + 1;
  }

 private:
  [[nodiscard]] Index key(Index sequence, Index line) const;
  [[nodiscard]] Index value(Index sequence, Index line) const;

  std::uint64_t seed_;
  Index seq_, queries_, lines_;
};

/// 400 steps of 4096 tokens and 512 labels, at lengths from 64 to 4096.
[[nodiscard]] Curriculum line_retrieval_curriculum();

}  // namespace ring_attention::model
