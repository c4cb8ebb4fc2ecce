/// \file
/// C += A B for the matrices of a model: Eigen's product, compiled for this instruction set.
///
/// `Eigen` is a macro here, the name of a namespace for each instruction set (cmake/cpu_kernels.cmake). Else the linker
/// could take a function of Eigen that has wide instructions for the whole program.
///
/// Eigen computes the smallest products one by one, some entries of a row with and some without a fused multiply-add:
/// then the address of C decides about bits. Here they are products like the others.
#define EIGEN_GEMM_TO_COEFFBASED_THRESHOLD 0
#include <Eigen/Core>

#include "ring_attention/cpu/kernels.hpp"

namespace ring_attention::cpu {
namespace {

template <class Real>
using Rows = Eigen::Matrix<Real, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class Real>
using SomeRows = Eigen::Map<const Rows<Real>, Eigen::Unaligned, Eigen::OuterStride<>>;

/// Calls use(the matrix), or use(the transpose of the matrix that is in memory), which Eigen's product reads as it is.
template <class Real>
void with_matrix(const Real* data, Offset rows, Offset columns, Offset row, Offset column, const auto& use) {
  if (column == 1)
    use(SomeRows<Real>(data, rows, columns, Eigen::OuterStride<>(row)));
  else
    use(SomeRows<Real>(data, columns, rows, Eigen::OuterStride<>(column)).transpose());
}

template <class Real>
void add_all(const MatrixProduct<Real>& of) {
  Eigen::Map<Rows<Real>> c(of.c, of.rows, of.columns);
  with_matrix(of.a, of.rows, of.depth, of.a_row, of.a_column, [&](const auto& a) {
    with_matrix(of.b, of.depth, of.columns, of.b_row, of.b_column,
                [&](const auto& b) { c.noalias() += a * b; });
  });
}

}  // namespace

namespace RING_ATTENTION_ISA {
extern const AddProducts add_product;
const AddProducts add_product{add_all<float>, add_all<double>};
}  // namespace RING_ATTENTION_ISA

}  // namespace ring_attention::cpu
