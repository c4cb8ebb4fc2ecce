#include "ring_attention/core/eigen.hpp"

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

template <class T>
using Rows = Eigen::Map<const Matrix<T>, Eigen::Unaligned, Eigen::OuterStride<>>;

/// Calls use(the matrix), or use(the transpose of the matrix that is in memory), which Eigen's product reads as it is.
template <class T>
void with_matrix(const Factor<T>& of, const auto& use) {
  if (of.column == 1)
    use(Rows<T>(of.data, of.rows, of.columns, Eigen::OuterStride<>(of.row)));
  else
    use(Rows<T>(of.data, of.columns, of.rows, Eigen::OuterStride<>(of.column)).transpose());
}

}  // namespace

template <class T>
void add_product(MatrixMap<T> c, T scale, const Factor<T>& a, const Factor<T>& b) {
  require((a.row == 1 || a.column == 1) && (b.row == 1 || b.column == 1), "add_product: steps in memory");
  require(c.rows() == a.rows && a.columns == b.rows && c.cols() == b.columns, "add_product: sizes");
  with_matrix(a, [&](const auto& left) {
    with_matrix(b, [&](const auto& right) { c.noalias() += scale * left * right; });
  });
}

template void add_product(MatrixMap<float>, float, const Factor<float>&, const Factor<float>&);
template void add_product(MatrixMap<double>, double, const Factor<double>&, const Factor<double>&);

}  // namespace ring_attention
