/// \file
/// Sums over the rows of a batch: which rows a product takes at once (`RowTiles`), and what a gradient adds up in
/// (`GradientSum`).
///
/// Rows are cut into tiles for the same bits on any number of ranks (attention/exact/sum.hpp). The bits of dw = x^T dy
/// depend on how many rows the product has, and in which order. In tiles, which are the same tokens on any number of ranks, a
/// product is the same numbers everywhere, and is a term of an exact sum.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "model/parameters.hpp"
#include "ring_attention/attention/exact/state.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/cpu/isa.hpp"

namespace ring_attention::model {

/// How the rows of an array `[batch, 1, tokens, width]` are multiplied.
struct RowTiles {
  RowTiles(Isa of = best_isa()) : isa(of) {}  // NOLINT(google-explicit-constructor): all rows at once
  /// The tiles of one rank, and exact sums. \param all  tiles of all ranks and sequences
  RowTiles(Isa of, const TokenRanges& tokens, const Tiling& tiling, Index all);

  Isa isa;
  bool exact = false;           ///< gradients are exact sums, with one term or two for each tile
  bool wide = false;            ///< of more terms than 1023
  std::vector<Interval> tiles;  ///< of this rank's tokens of a sequence

  /// Calls visit(rows) for those that a product takes at once. \param rows  of all sequences
  void for_each(Index rows, const std::function<void(const Interval&)>& visit) const;
};

/// The sum of the gradient of a matrix over the rows of a batch, as floats or as exact sums. A view.
template <class T>
class GradientSum {
 public:
  GradientSum(View<T> floats) : floats_(floats), shape_(floats.shape()) {}  // NOLINT: as View of Tensor
  GradientSum(Tensor<T>& floats) : GradientSum(floats.view()) {}            // NOLINT
  GradientSum(ExactRows& sums, Isa isa);

  /// `[1, 1, rows, columns]`.
  [[nodiscard]] const Shape& shape() const { return shape_; }
  /// Some rows of the matrix.
  [[nodiscard]] GradientSum rows(Index first, Index count) const;
  /// Adds what `add` adds to the floats `[1, 1, rows, columns]` that it is given: the part of some rows of the batch, which
  /// is a term of an exact sum.
  void add(const std::function<void(View<T>)>& add) const;

 private:
  View<T> floats_;
  ExactRows* exact_ = nullptr;  // null: floats_
  Isa isa_ = best_isa();
  Shape shape_;
  Index first_ = 0;
};

/// The sums of all matrices of a flat array of parameters.
template <class T>
class GradientSums {
 public:
  GradientSums(const ParameterLayout& layout, const RowTiles& rows);

  /// The sum of the matrix of this name. \throws Error for another name
  [[nodiscard]] GradientSum<T> operator()(const std::string& name);

  /// The flat array of floats; empty with exact sums.
  [[nodiscard]] std::span<T> floats() { return floats_.view().elements(); }
  /// An array for each of the layout's parameters; empty without exact sums.
  [[nodiscard]] std::vector<ExactRows>& exact() { return exact_; }

 private:
  const ParameterLayout& layout_;
  Isa isa_;
  Tensor<T> floats_;
  std::vector<ExactRows> exact_;
};

}  // namespace ring_attention::model
