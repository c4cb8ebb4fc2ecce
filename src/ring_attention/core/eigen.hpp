/// \file
/// The bridge to Eigen: one head of a View as a matrix, without a copy.
#pragma once

#include <Eigen/Core>
#include <type_traits>

#include "ring_attention/core/view.hpp"

namespace ring_attention {

/// Row-major, as every array here is.
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
using Vector = Eigen::Matrix<T, Eigen::Dynamic, 1>;

/// A matrix that lives in a View.
template <class T>
using MatrixMap =
    Eigen::Map<std::conditional_t<std::is_const_v<T>, const Matrix<std::remove_const_t<T>>, Matrix<T>>>;

/// A matrix whose rows and columns have steps in memory: some rows and some columns of a View.
template <class T>
using StridedMap =
    Eigen::Map<std::conditional_t<std::is_const_v<T>, const Matrix<std::remove_const_t<T>>, Matrix<T>>,
               Eigen::Unaligned, Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>>;

/// Head (b, h) of `view` as a matrix [seq, dim].
template <class T>
[[nodiscard]] MatrixMap<T> matrix(const View<T>& view, Index batch, Index head) {
  return {view.head(batch, head), view.shape().seq, view.shape().dim};
}

/// Rows [first, first + count) of head (b, h): a block, again without a copy.
template <class T>
[[nodiscard]] MatrixMap<T> matrix(const View<T>& view, Index batch, Index head, Index first, Index count) {
  return {view.head(batch, head) + first * view.shape().dim, count, view.shape().dim};
}

/// A matrix in memory or its transpose, for a product: rows or columns are contiguous.
template <class T>
struct Factor {
  template <class M>
  Factor(const Eigen::MatrixBase<M>& matrix)  // NOLINT: stands for the matrix
      : data(matrix.derived().data()),
        rows(matrix.rows()),
        columns(matrix.cols()),
        row(matrix.derived().rowStride()),
        column(matrix.derived().colStride()) {}

  const T* data;
  Index rows, columns;
  Index row, column;  // steps in memory
};

/// c += scale a b. Eigen's product, compiled once: an expression of Eigen would be compiled wherever it is written.
template <class T>
void add_product(MatrixMap<T> c, T scale, const Factor<T>& a, const Factor<T>& b);
template <class T>
void add_product(Matrix<T>& c, T scale, const Factor<T>& a, const Factor<T>& b) {
  add_product<T>(MatrixMap<T>(c.data(), c.rows(), c.cols()), scale, a, b);
}

}  // namespace ring_attention
