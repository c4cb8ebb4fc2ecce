/// \file
/// C += A B for the matrices of a model, by the one product of simd.hpp.
///
/// An entry of C gets its sum over a block of the depth, term after term. So its bits depend neither on its place in C nor
/// on addresses: a training that resumes, or shares its rows with other ranks, repeats them.
#include "ring_attention/cpu/simd.hpp"

namespace ring_attention::cpu {
namespace {

constexpr Offset depth_block = 1024 / RING_ATTENTION_REAL_BYTES;
constexpr Offset row_block = 256;

inline Offset at_most(Offset n, Offset limit) { return n < limit ? n : limit; }

/// packed[r][lane] = B(r, lane), and 0 in the lanes from `columns` on.
void pack(const Real* b, Offset b_row, Offset b_column, Offset depth, Offset columns, Real* packed) {
  if (columns < lanes)
    for (Offset i = 0; i < depth * lanes; ++i) packed[i] = 0;
  if (b_column != 1)
    transpose(b, b_column, columns, depth, packed, lanes);
  else if (columns == lanes)
    for (Offset r = 0; r < depth; ++r)
      for (int v = 0; v < tile_vectors; ++v)
        store(packed + r * lanes + v * width, load(b + r * b_row + v * width));
  else
    for (Offset r = 0; r < depth; ++r)
      for (Offset j = 0; j < columns; ++j) packed[r * lanes + j] = b[r * b_row + j];
}

/// A block of B stays in the caches while the rows of A pass; columns of A become rows first.
void add_matrix_product(const MatrixProduct<Real>& of) {
  Real columns_of_a[row_block * depth_block], packed[depth_block * lanes];
  for (Offset r = 0; r < of.depth; r += depth_block)
    for (Offset i = 0; i < of.rows; i += row_block) {
      const Offset depth = at_most(of.depth - r, depth_block), rows = at_most(of.rows - i, row_block);
      const Real* a = of.a + i * of.a_row + r * of.a_column;
      Offset a_row = of.a_row;
      if (of.a_column != 1) {
        transpose(a, of.a_column, depth, rows, columns_of_a, depth_block);
        a = columns_of_a;
        a_row = depth_block;
      }
      for (Offset j = 0; j < of.columns; j += lanes) {
        const Offset columns = at_most(of.columns - j, lanes);
        const Real* b = of.b + r * of.b_row + j * of.b_column;
        Offset b_row = of.b_row;
        if (of.b_column != 1 || columns < lanes || rows > tile_rows) {  // else it is read once, where it is
          pack(b, of.b_row, of.b_column, depth, columns, packed);
          b = packed;
          b_row = lanes;
        }
        for_groups<tile_rows>(rows, [&](auto group, Offset first) {
          Vector sum[group.value][tile_vectors] = {};
          multiply_add(sum, a + first * a_row, a_row, 1, b, b_row, depth);
          Real* c = of.c + (i + first) * of.columns + j;
          RING_ATTENTION_UNROLL
          for (int g = 0; g < group.value; ++g) {
            RING_ATTENTION_UNROLL
            for (int v = 0; v < tile_vectors; ++v)
              add_to(c + g * of.columns + v * width, sum[g][v], columns - v * width);
          }
        });
      }
    }
}

}  // namespace

namespace RING_ATTENTION_ISA {
extern const AddProduct<Real> add_product;
const AddProduct<Real> add_product = add_matrix_product;
}  // namespace RING_ATTENTION_ISA

}  // namespace ring_attention::cpu
