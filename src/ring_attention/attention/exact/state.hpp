/// \file
/// Arrays of exact sums, and `ExactPartial`: attention over the keys seen so far whose merge is exactly associative and
/// commutative.
///
/// Partial (partial.hpp) has the same algebra up to rounding. Here the terms are the partial results of single tiles of keys
/// (exact/tiling.hpp), which the usual engines compute. Only the addition differs.
#pragma once

#include <vector>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/attention/exact/sum.hpp"

namespace ring_attention {

/// An exact sum in place of every row of an array `[batch, heads, seq, dim]` of floats.
class ExactRows {
 public:
  ExactRows() = default;
  explicit ExactRows(const Shape& shape, bool wide = false);

  /// The sums of a row.
  [[nodiscard]] ExactSum at(Index batch, Index head, Index row) {
    return {format_, words_.view().row(batch, head, row).data()};
  }
  [[nodiscard]] const ExactFormat& format() const { return format_; }
  /// `[batch, heads, seq, words]`.
  [[nodiscard]] Tensor<float>& words() { return words_; }
  /// Makes the rows wide: each then takes more than 1023 terms.
  void widen();
  void merge(const ExactRows& other);
  /// `[batch, heads, seq, dim]`.
  [[nodiscard]] Tensor<float> values() const;

 private:
  ExactFormat format_;
  Tensor<float> words_;
};

/// The sums l = sum 2^(s log2 e) and o = sum 2^(s log2 e) v of rows. A row without a key has no term.
struct ExactPartial {
  ExactRows o;  ///< of `[batch, heads, seq, value_dim]`
  ExactRows l;  ///< of `[batch, heads, seq, 1]`

  /// \param out  the shape of the sums o
  [[nodiscard]] static ExactPartial empty(const Shape& out, bool wide = false) {
    return {ExactRows(out, wide), ExactRows(out.per_row(), wide)};
  }
  void widen();
  void merge(const ExactPartial& other);

  /// Adds the sinks (sink.hpp), once for all ranks; out = o / l and lse = log l, rounded once. Ends the work.
  [[nodiscard]] AttentionResult<float> finish(const std::vector<double>& sinks);
};

}  // namespace ring_attention
