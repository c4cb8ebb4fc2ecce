/// \file
/// The ladder to the fast forward: four steps behind one signature, each faster than the one before for one reason.
///
/// All are lesson 03's algorithm in float32: tiles of queries, an online softmax over blocks of keys. The last is the
/// library's engine. tests/lessons tests all four, tests/benchmarks measures them.
#pragma once

#include <array>

#include "ring_attention/attention/partial.hpp"
#include "ring_attention/attention/scoring.hpp"

namespace ring_attention {

/// out = softmax(scale q k^T + bias and mask) v, with q's tokens at the positions 0 .. seq-1.
/// \param q  [batch, heads, seq, dim]
/// \param k, v  [batch, kv_heads, keys, dim]
/// \param threads  share the tiles of queries; the result is the same for any number
/// \throws Error when the shapes do not belong together
using LadderStep = AttentionResult<float>(View<const float> q, View<const float> k, View<const float> v,
                                          const Scoring& scoring, int threads);

/// 1. The formulas as Eigen expressions: each result is a new matrix, in Eigen's own order (column by column).
LadderStep textbook_eigen;

/// 2. The same products into memory that is allocated once, row by row as the arrays lie; the softmax works in place.
LadderStep preallocated_eigen;

/// 3. Plain loops over a transposed tile: queries lie side by side, so that the compiler can give each a SIMD lane. No
/// step adds or compares across lanes.
LadderStep queries_in_lanes;

/// 4. The same layout in vector types: sums stay in registers, and the best instruction set is chosen at run time.
LadderStep fast_forward;

struct NamedLadderStep {
  const char* name;
  LadderStep* attend;
};

/// Slow to fast.
inline constexpr std::array<NamedLadderStep, 4> ladder{{{"textbook_eigen", textbook_eigen},
                                                        {"preallocated_eigen", preallocated_eigen},
                                                        {"queries_in_lanes", queries_in_lanes},
                                                        {"fast_forward", fast_forward}}};

}  // namespace ring_attention
