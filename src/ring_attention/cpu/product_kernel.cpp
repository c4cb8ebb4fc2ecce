/// \file
/// C += A B for the matrices of a model, by the product of simd.hpp.
///
/// Some columns of C at a time, `block` rows of B at a time: that part of B is copied into a panel with rows of whole
/// vectors, which stays in the first cache while all rows of A pass. So B may be the transpose of what is in memory, and
/// columns that fill no vector are zeros in the panel. An entry of C is a sum in the order of the rows of B: its bits
/// depend on no other entry, nor on how many there are.
#include "ring_attention/cpu/simd.hpp"

namespace ring_attention::cpu {
namespace {

constexpr Offset block = 128;

/// Rows r .. r + depth - 1 and columns first .. first + n - 1 of B, in rows of `stride` numbers.
void load_panel(const MatrixProduct<Real>& of, Offset r, Offset depth, Offset first, Offset n, Real* panel,
                Offset stride) {
  const Real* b = of.b + r * of.b_row + first * of.b_column;
  if (n < stride)
    for (Offset i = 0; i < depth * stride; ++i) panel[i] = 0;
  if (of.b_column > 1) {
    transpose(b, of.b_column, n, depth, panel, stride);
    return;
  }
  for (Offset i = 0; i < depth; ++i)
    for (Offset j = 0; j < n; ++j) panel[i * stride + j] = b[i * of.b_row + j];
}

/// c[i][j] += sum_r A(i, r) panel[r][j] for some rows of so many whole vectors, in registers.
template <int rows, int vectors>
void add_whole(const MatrixProduct<Real>& of, const Real* a, Offset depth, const Real* panel, Real* c,
               Offset stride) {
  Vector sums[rows][vectors];
  RING_ATTENTION_UNROLL
  for (int i = 0; i < rows; ++i) RING_ATTENTION_UNROLL
  for (int v = 0; v < vectors; ++v) sums[i][v] = load(c + i * stride + v * width);
  multiply_add(sums, a, of.a_row, of.a_column, panel, vectors * width, depth);
  RING_ATTENTION_UNROLL
  for (int i = 0; i < rows; ++i) RING_ATTENTION_UNROLL
  for (int v = 0; v < vectors; ++v) store(c + i * stride + v * width, sums[i][v]);
}

/// The same for rows of n numbers: by way of a copy where they end inside a vector.
template <int rows, int vectors>
void add_rows(const MatrixProduct<Real>& of, const Real* a, Offset depth, const Real* panel, Real* c,
              Offset n) {
  constexpr Offset whole = vectors * width;
  if (n == whole) return add_whole<rows, vectors>(of, a, depth, panel, c, of.columns);
  Real copy[rows * whole] = {};
  for (Offset i = 0; i < rows; ++i)
    for (Offset j = 0; j < n; ++j) copy[i * whole + j] = c[i * of.columns + j];
  add_whole<rows, vectors>(of, a, depth, panel, copy, whole);
  for (Offset i = 0; i < rows; ++i)
    for (Offset j = 0; j < n; ++j) c[i * of.columns + j] = copy[i * whole + j];
}

/// Columns first .. first + n - 1 of C, which fill `vectors` vectors, or fewer.
template <int vectors>
void add_columns(const MatrixProduct<Real>& of, Offset first, Offset n, Real* panel) {
  if constexpr (vectors > 1)
    if (n <= (vectors - 1) * width) return add_columns<vectors - 1>(of, first, n, panel);
  for (Offset r = 0; r < of.depth; r += block) {
    const Offset depth = of.depth - r < block ? of.depth - r : block;
    load_panel(of, r, depth, first, n, panel, vectors * width);
    for_groups<tile_rows>(of.rows, [&](auto rows, Offset i) {
      add_rows<rows.value, vectors>(of, of.a + i * of.a_row + r * of.a_column, depth, panel,
                                    of.c + i * of.columns + first, n);
    });
  }
}

void add_all(const MatrixProduct<Real>& of) {
  alignas(RING_ATTENTION_VECTOR_BYTES) Real panel[block * lanes];
  for (Offset first = 0; first < of.columns; first += lanes)
    add_columns<tile_vectors>(of, first, of.columns - first < lanes ? of.columns - first : Offset{lanes},
                              panel);
}

}  // namespace

namespace RING_ATTENTION_ISA {
extern const AddProduct<Real> add_product;
const AddProduct<Real> add_product = add_all;
}  // namespace RING_ATTENTION_ISA

}  // namespace ring_attention::cpu
