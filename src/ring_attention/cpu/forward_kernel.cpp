/// \file
/// The fast forward: lesson 03's online softmax with one query in every SIMD lane.
///
/// Source: Dao et al., FlashAttention, arXiv 2205.14135, algorithm 1. A tile has some panels of `lanes` queries.
/// In every array of a panel the queries are adjacent, so that no step adds or compares across lanes:
///
///     qt[dim][lanes]   the queries, transposed, times the scale
///     ot[value_dim][lanes]   sum e^(s - m) v, not normalised
///     m[lanes], l[lanes]
///     p[block][lanes]  the scores of a block of keys, then their exponentials
///
/// For each block of keys, in four steps:
///
///     1.  s[j]  = sum_c k[j][c] qt[c]     and m' = max(m, s[j])
///     2.  p[j]  = 2^(log2(e) (s[j] - m'))
///     3.  a     = 2^(log2(e) (m - m')),  l = a l + sum_j p[j]
///     4.  ot[c] = a ot[c] + sum_j v[j][c] p[j]
///
/// Steps 1 and 4 are the work, lanes * block * (dim + value_dim) multiply-adds, and both are the one product of simd.hpp: k and
/// v are read row by row, without a transpose. Compiled once for each instruction set and type, in the
/// namespace RING_ATTENTION_ISA.
#include "ring_attention/cpu/key_span.hpp"

namespace ring_attention::cpu {
namespace {

/// Keys; p of so many, k, v stay in the caches. The same for every tile and instruction set, for the same bits.
constexpr Offset block = 96 * 4 / RING_ATTENTION_REAL_BYTES;

/// A panel of a tile in the workspace of a thread.
struct Panel {
  /// \param rows  of which it takes the columns  \param first  its first lane in the tile
  Panel(Real* workspace, const QueryRows<Real>& rows, Offset first)
      : m(workspace + first * elements(rows.dim, rows.value_dim)),
        l(m + lanes),
        p(l + lanes),
        qt(p + block * lanes),
        ot(qt + static_cast<Offset>(rows.dim) * lanes) {}
  /// Numbers of one lane.
  static Offset elements(Offset dim, Offset value_dim) { return 2 + block + dim + value_dim; }
  Real *m, *l, *p, *qt, *ot;
};

inline void load_panel(const QueryRows<Real>& rows, const Panel& panel) {
  const Offset columns = static_cast<Offset>(rows.dim) + rows.value_dim;
  for (Offset i = 0; i < columns * lanes; ++i) panel.qt[i] = 0;  // qt and ot
  transpose(rows.q, rows.dim, rows.queries, rows.dim, panel.qt, lanes);
  transpose(rows.o, rows.value_dim, rows.queries, rows.value_dim, panel.ot, lanes);
  const Vector scale = broadcast(rows.scale);
  for (Offset i = 0; i < rows.dim * lanes; i += width) store(panel.qt + i, load(panel.qt + i) * scale);
  for (int i = 0; i < lanes; ++i) {
    panel.m[i] = i < rows.queries ? rows.m[i] : -infinity;
    panel.l[i] = i < rows.queries ? rows.l[i] : 0;
  }
}

inline void store_panel(const QueryRows<Real>& rows, const Panel& panel) {
  transpose(panel.ot, lanes, rows.value_dim, rows.queries, rows.o, rows.value_dim);
  for (int i = 0; i < rows.queries; ++i) {
    rows.m[i] = panel.m[i];
    rows.l[i] = panel.l[i];
  }
}

/// Step 1 for the keys j .. j + n - 1 of the span; `top` becomes their largest score.
/// \param plain  without cap, bias and mask, as nearly all blocks are; a dense bias is in p
///
/// For few queries memory is the limit: the values of the block are fetched while the keys are computed with.
template <bool plain>
void scores(const KeySpan<Real>& span, Offset j, Offset n, bool masked, Offset dim, Offset value_dim,
            const Panel& panel, Vector (&top)[tile_vectors], bool fetch) {
  for (Vector& t : top) t = broadcast(-infinity);
  for_groups<tile_rows>(n, [&](auto rows, Offset i) {
    if (few_queries || (fetch && panels > 1)) prefetch(span.v + (j + i) * value_dim, rows.value * value_dim);
    Vector s[rows.value][tile_vectors] = {};
    multiply_add(s, span.k + (j + i) * dim, dim, 1, panel.qt, lanes, dim);
    RING_ATTENTION_UNROLL
    for (int v = 0; v < tile_vectors; ++v) RING_ATTENTION_UNROLL
    for (int r = 0; r < rows.value; ++r) {
      Real* at = panel.p + (i + r) * lanes + v * width;
      if (!plain) s[r][v] = capped(s[r][v], span);
      if (!plain && span.bias.data != nullptr) s[r][v] += load(at);
      if (!plain) s[r][v] = adjusted(s[r][v], span, j + i + r, v, masked);
      top[v] = larger(s[r][v], top[v]);
      store(at, s[r][v]);
    }
  });
}

/// Steps 2 and 3: p = exponentials; m and l move on, and step 4 moves ot by the same factors a. `values` are what
/// step 4 reads next.
///
/// The difference comes first, which is exact for scores near m. log2(e) s - log2(e) m would take an operation less, but
/// there log2(e) m is rounded: the exponent of the largest score is then not 0, and from 10^9 on beyond 127 or -127.
void exponentiate(const Real* values, Offset n, Offset dim, const Panel& panel,
                  const Vector (&top)[tile_vectors], Vector (&a)[tile_vectors], bool fetch) {
  Vector from[tile_vectors], l[tile_vectors] = {};
  RING_ATTENTION_UNROLL
  for (int v = 0; v < tile_vectors; ++v) {
    const Vector before = load(panel.m + v * width);
    const Vector m = larger(top[v], before);
    from[v] = m == -infinity ? broadcast(0) : m;  // no key seen yet: -inf - 0, not -inf + inf
    a[v] = exp2((before - from[v]) * log2_e);
    store(panel.m + v * width, m);
  }
  for (Offset j = 0; j < n; ++j) {
    if (fetch && !few_queries && panels == 1) prefetch(values + j * dim, dim);
    RING_ATTENTION_UNROLL
    for (int v = 0; v < tile_vectors; ++v) {
      Real* s = panel.p + j * lanes + v * width;
      const Vector p = exp2((load(s) - from[v]) * log2_e);
      store(s, p);
      l[v] += p;
    }
  }
  RING_ATTENTION_UNROLL
  for (int v = 0; v < tile_vectors; ++v)
    store(panel.l + v * width, fma(a[v], load(panel.l + v * width), l[v]));
}

/// Between steps 3 and 4: l has the sum of all p, and o gets those that are kept.
void drop(const DropoutLanes<Real>& dropout, Offset j, Offset n, const Panel& panel) {
  for (Offset i = 0; i < n; ++i) {
    RING_ATTENTION_UNROLL
    for (int v = 0; v < tile_vectors; ++v) {
      Real* p = panel.p + i * lanes + v * width;
      store(p, load(p) * dropout_factors(dropout, j + i, v));
    }
  }
}

/// Step 4. It also prefetches the keys of the next block in double and for few queries, whose bytes the processor
/// itself fetches too late.
void accumulate(const Real* values, Offset n, Offset dim, const Vector (&a)[tile_vectors], const Panel& panel,
                const Real* next_keys, bool fetch) {
  for_groups<tile_rows>(dim, [&](auto rows, Offset c) {
    if (fetch && (panels > 1 || few_queries)) prefetch(next_keys + c * n, rows.value * n);
    Vector sum[rows.value][tile_vectors] =
        {};  // of this block by itself: then its rounding errors stay small
    multiply_add(sum, values + c, 1, dim, panel.p, lanes, n);
    RING_ATTENTION_UNROLL
    for (int r = 0; r < rows.value; ++r) {
      RING_ATTENTION_UNROLL
      for (int v = 0; v < tile_vectors; ++v) {
        Real* o = panel.ot + (c + r) * lanes + v * width;
        store(o, fma(a[v], load(o), sum[r][v]));
      }
    }
  });
}

/// All steps for the keys j .. j + n - 1 of the span.
/// \param fetch  for the first panel of a tile: the others find the keys and values in the caches
void attend_block(const KeySpan<Real>& span, Offset j, Offset n, bool masked, const QueryRows<Real>& rows,
                  const Panel& panel, bool fetch) {
  const Offset dim = rows.dim, value_dim = rows.value_dim;
  Vector top[tile_vectors], a[tile_vectors];
  if (span.bias.data != nullptr) load_pairs(span.bias, j, n, panel.p);
  if (changes_scores(span, masked))
    scores<false>(span, j, n, masked, dim, value_dim, panel, top, fetch);
  else
    scores<true>(span, j, n, masked, dim, value_dim, panel, top, fetch);
  exponentiate(span.v + j * value_dim, n, value_dim, panel, top, a, fetch);
  if (span.dropout.low != nullptr) drop(span.dropout, j, n, panel);
  accumulate(span.v + j * value_dim, n, value_dim, a, panel, span.k + (j + n) * dim, fetch);
}

inline Size workspace_elements(HeadWidths widths) {
  return static_cast<Size>(Panel::elements(widths.k, widths.v) * panels * lanes);
}

inline void load_tile(const QueryRows<Real>& rows, Real* workspace) {
  for_panels(
      rows, [&](const QueryRows<Real>& part, int first) { load_panel(part, Panel(workspace, rows, first)); });
}

inline void store_tile(const QueryRows<Real>& rows, Real* workspace) {
  for_panels(rows, [&](const QueryRows<Real>& part, int first) {
    store_panel(part, Panel(workspace, rows, first));
  });
}

/// \param exact  the blocks begin at multiples: those of a row do not depend on what other lanes see
template <bool exact>
void attend(const KeySpan<Real>& span, const QueryRows<Real>& rows, Real* workspace) {
  const VisibleKeys seen(span, panels * lanes);
  for (Offset j = exact ? seen.begin / block * block : seen.begin; j < seen.end; j += block) {
    const Offset n = seen.end - j < block ? seen.end - j : block;
    bool fetch = true;
    for_panels_that_see(
        span, seen, j, j + n, rows,
        [&](const QueryRows<Real>& part, const KeySpan<Real>& own, int first, bool masked, Offset end) {
          attend_block(own, j, end - j, masked, part, Panel(workspace, part, first), fetch);
          fetch = false;
        });
  }
}

}  // namespace

#if !defined(RING_ATTENTION_ONLY_ARITHMETIC)  // exact/forward_kernel.cpp has a table of its own
namespace RING_ATTENTION_ISA {
#if !defined(RING_ATTENTION_FORWARD)
#define RING_ATTENTION_FORWARD forward
#endif
extern const ForwardKernel<Real> RING_ATTENTION_FORWARD;
const ForwardKernel<Real> RING_ATTENTION_FORWARD{panels * lanes, workspace_elements, load_tile, attend<false>,
                                                 store_tile};
}  // namespace RING_ATTENTION_ISA
#endif

}  // namespace ring_attention::cpu
