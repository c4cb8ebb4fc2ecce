/// \file
/// `Task`: sequences whose tokens and labels are pure functions of (seed, sequence, position), and the part of a rank.
///
/// So a rank makes its own tokens, and the token before each of them, for every placement and without a message.
#pragma once

#include <cstdint>
#include <vector>

#include "ring_attention/core/token_range.hpp"

namespace ring_attention::model {

/// A synthetic task. A label is at the position whose output answers: it is not shifted.
class Task {
 public:
  static constexpr Index none = -1;

  virtual ~Task() = default;
  [[nodiscard]] virtual Index vocabulary() const = 0;
  /// The answers are the tokens first_class() .. first_class() + classes() - 1.
  [[nodiscard]] virtual Index first_class() const = 0;
  [[nodiscard]] virtual Index classes() const = 0;
  [[nodiscard]] virtual Index seq() const = 0;
  /// \param sequence  any number >= 0; \param position  0 .. seq() - 1
  [[nodiscard]] virtual Index token(Index sequence, Index position) const = 0;
  /// The class 0 .. classes() - 1, or none.
  [[nodiscard]] virtual Index label(Index sequence, Index position) const = 0;
};

/// Some tokens of some sequences, `[sequences, tokens]`, row-major.
struct Examples {
  Index sequences = 0, tokens = 0;
  std::vector<Index> token;
  std::vector<Index> previous;  ///< the token at the position before, Task::none before the first
  std::vector<Index> label;     ///< or Task::none

  [[nodiscard]] Index labels() const;
};

/// The tokens at `ranges` of the sequences [begin, end).
[[nodiscard]] Examples examples(const Task& task, const Interval& sequences, const TokenRanges& ranges);

/// A part of a training: `steps` batches of `batch` sequences of `seq` tokens.
struct Stage {
  Index seq, batch, steps;
  Index arms = 0;  ///< in play (NeedleBandit)
};
using Curriculum = std::vector<Stage>;

/// A number of 64 bits for each (seed, sequence, index, tag).
[[nodiscard]] std::uint64_t hash(std::uint64_t seed, Index sequence, Index index, std::uint64_t tag);
/// A bijection of [0, 2^bits) for each (seed, sequence), at x: four rounds of xor, odd multiplication and shift.
[[nodiscard]] Index permuted(std::uint64_t seed, Index sequence, Index x, int bits);

}  // namespace ring_attention::model
