/// \file
/// The interface between the portable engines and the kernels, which are compiled once for every instruction set and
/// type T of the arithmetic, float or double.
///
/// Only plain structs and function pointers pass through it. A kernel file includes this header, `simd.hpp`, `key_span.hpp`,
/// `dropout_hash.hpp` and `exact/format.hpp`, and nothing else: an inline function of the standard library or of Eigen,
/// compiled there with wide instructions, could be the copy that the linker keeps for the whole program.
#pragma once

#include "ring_attention/attention/exact/format.hpp"

namespace ring_attention::cpu {

using Size = decltype(sizeof(0));
using Offset = decltype(static_cast<char*>(nullptr) - static_cast<char*>(nullptr));

constexpr int max_lanes = 128;  ///< no kernel has more queries in a tile

/// Columns of q and k, and of v and o.
struct HeadWidths {
  int k, v;
  HeadWidths(int both) : HeadWidths(both, both) {}  // NOLINT: all have the same
  HeadWidths(int of_k, int of_v) : k(of_k), v(of_v) {}
};

/// A number for each pair of a tile and a range of keys: the number of lane i and key j is data[i * row + j * key].
template <class T>
struct PairMatrix {
  T* data = nullptr;  ///< null: none
  Offset row = 0, key = 0;
  int queries = 0;  ///< lanes that have a row
};

/// The dropout of a tile and a range of keys (attention/dropout.hpp).
template <class T>
struct DropoutLanes {
  const unsigned* low = nullptr;   ///< of each lane: the words of its row; null: no dropout
  const unsigned* high = nullptr;  ///< of each lane
  unsigned first = 0, step = 0;    ///< the word of key j is first + j * step
  unsigned threshold = 0;
  T scale = 1;  ///< the factor of a kept pair
};

/// The keys of one range, as a tile of queries sees them. An array of lanes has `max_lanes` entries, and the kernel reads
/// one for each of its lanes; a lane without a query repeats a lane that has one.
template <class T>
struct KeySpan {
  const T* k;                     ///< [keys][dim]
  const T* v;                     ///< [keys][value_dim]
  const int* begin;               ///< of each lane: its query sees the keys begin <= j < end of this range
  const int* end;                 ///< of each lane
  T slope = 0;                    ///< ALiBi: the score of key j falls by slope * |distance + j * stride|, ...
  T stride = 1;                   ///< ... in tokens ...
  const T* distance = nullptr;    ///< ... where this is the distance of key 0, of each lane
  PairMatrix<const T> bias = {};  ///< added to the scores
  PairMatrix<T> grad_bias = {};   ///< backward: dS is added to it
  DropoutLanes<T> dropout = {};
  T softcap =
      0;  ///< a product x of the scores becomes softcap * tanh(x / softcap), before all else; 0: it stays
};

/// A tile of queries in memory, row by row, with the state of its online softmax.
template <class T>
struct QueryRows {
  int queries;  ///< at most the lanes of the kernel
  int dim, value_dim;
  T scale;     ///< of the scores
  const T* q;  ///< [queries][dim]
  T* o;        ///< [queries][value_dim]: sum e^(s - m) v
  T* m;        ///< [queries]: the largest score so far
  T* l;        ///< [queries]: sum e^(s - m)
};

/// A tile of queries in memory, for the backward. A row that sees no key has lse = -inf.
template <class T>
struct GradientRows {
  int queries;
  int dim, value_dim;
  T scale;
  const T* q;         ///< [queries][dim]
  const T* grad_out;  ///< [queries][value_dim]: dO
  const T* lse;       ///< [queries], natural logarithm, over all keys
  const T* delta;     ///< [queries]: rowsum(dO * O)
  T* grad_q;          ///< [queries][dim]: dQ, added to
};

/// One kernel for the forward: load a tile, attend to any number of spans of keys, store it.
template <class T>
struct ForwardKernel {
  int lanes;                      ///< queries in a tile
  Size (*workspace)(HeadWidths);  ///< elements that a thread needs, at an address that is a multiple of 64
  void (*load)(const QueryRows<T>&, T* workspace);
  void (*attend)(const KeySpan<T>&, const QueryRows<T>&, T* workspace);
  void (*store)(const QueryRows<T>&, T* workspace);
};

/// A tile of queries of the backward, cut so that it stays in the second-level cache.
struct BackwardTile {
  int queries, panels;  ///< a panel: the queries in the lanes of the registers
  Size bytes;           ///< q, dO, their transposes and dQ
  Size cache;           ///< that the tile is cut for, of the instruction set
};

/// One kernel for the backward, used like a ForwardKernel; `attend` adds to dK, [keys][dim], and to dV, [keys][value_dim], of
/// the span.
template <class T>
struct BackwardKernel {
  BackwardTile (*tile)(HeadWidths);
  Size (*workspace)(HeadWidths);
  void (*load)(const GradientRows<T>&, T* workspace);
  void (*attend)(const KeySpan<T>&, const GradientRows<T>&, T* grad_k, T* grad_v, T* workspace);
  void (*store)(const GradientRows<T>&, T* workspace);
};

/// C += A B. C has `rows` rows of `columns` numbers, one after the other. A and B are rows or columns in memory: one of
/// their two steps is 1.
template <class T>
struct MatrixProduct {
  Offset rows, columns, depth;
  const T* a;  ///< A(i, r) = a[i * a_row + r * a_column], r < depth
  Offset a_row, a_column;
  const T* b;  ///< B(r, j) = b[r * b_row + j * b_column]
  Offset b_row, b_column;
  T* c;  ///< overlaps neither a nor b
};
template <class T>
using AddProduct = void (*)(const MatrixProduct<T>&);

/// Rows of terms, [rows][dim], and the exact sums to which they are added, [rows][words] (attention/exact/sum.hpp): one
/// term per row. The caller has called ExactSum::make_room() for each row.
struct ExactTerms {
  const float* terms;
  float* sums;
  Offset rows, dim, words;
};
using AddExactTerms = void (*)(const ExactTerms&);

/// The forward of some queries: a tile takes as long for one query as for all its lanes.
template <class T>
struct ForwardKernels {
  ForwardKernel<T> many;
  ForwardKernel<T> few[2];  ///< each for at most its number of lanes, ascending: the same bits in less time
};

template <class T>
struct Kernels {
  ForwardKernels<T> forward;
  BackwardKernel<T> backward;
  AddProduct<T> add_product;

  // Exact sums of floats: the same kernels, where `attend` takes one tile of keys and `store` writes rows of sums, not wide:
  // [queries][words of o, then words of l] in place of o, and [queries][words of dQ] in place of dQ.
  ForwardKernels<float> exact_forward;
  BackwardKernel<float> exact_backward;
  AddExactTerms add_exact_terms;
};

}  // namespace ring_attention::cpu
