/// \file
/// The fast backward: the five products of lesson 07, with one query in every SIMD lane where rows are keys, and one
/// dimension in every lane where rows are dK and dV.
///
/// Source: Dao et al., FlashAttention, arXiv 2205.14135, algorithm 4; lesson 07 derives it. A tile has one panel of
/// `lanes` queries, in double four: qt (times the scale), dO and dQ transposed as [dim][lanes], and q (times scale) and
/// dO once more row by row, [queries][dim], with padded rows. For each block of keys:
///
///     1.  p[j]   = e^(sum_c k[j][c] qt[c] - lse)
///     2.  ds[j]  = p[j] (sum_c v[j][c] dot[c] - delta)
///     3.  dv[j] += sum_i p[j][i] do[i]
///     4.  dk[j] += sum_i ds[j][i] q[i]
///     5.  dqt[c] += sum_j k[j][c] ds[j]
#include "ring_attention/cpu/span.hpp"

namespace ring_attention::cpu {
namespace {

constexpr Offset block = 64;  // keys

/// `dim` rounded up to whole vectors.
constexpr Offset padded(Offset dim) { return (dim + width - 1) / width * width; }
/// Of q and dO: an odd number of vectors, for rows that are a power of two apart share a few sets of the cache.
constexpr Offset row_stride(Offset dim) { return (padded(dim) / width | 1) * width; }

/// A panel of a tile in the workspace of a thread.
struct Panel {
  /// \param first  its first lane in the tile
  Panel(Real* workspace, Offset dim, Offset first)
      : lse(workspace + first * elements(dim)),
        delta(lse + lanes),
        p(delta + lanes),
        ds(p + block * lanes),
        qt(ds + block * lanes),
        grad_out_t(qt + dim * lanes),
        grad_q_t(grad_out_t + dim * lanes),
        q(grad_q_t + dim * lanes),
        grad_out(q + lanes * row_stride(dim)),
        end(grad_out + lanes * row_stride(dim)) {}
  static Offset elements(Offset dim) { return 2 + 2 * block + 3 * dim + 2 * row_stride(dim); }  // of one lane
  Real *lse, *delta;                                                                            // [lanes]
  Real *p, *ds;                      // [block][lanes]
  Real *qt, *grad_out_t, *grad_q_t;  // [dim][lanes]
  Real *q, *grad_out;                // [lanes][row_stride]
  Real* end;
};

void load_panel(const GradientRows<Real>& rows, const Panel& panel) {
  for (Real* at = panel.qt; at < panel.end; ++at) *at = 0;
  transpose(rows.q, rows.dim, rows.queries, rows.dim, panel.qt, lanes);
  transpose(rows.grad_out, rows.dim, rows.queries, rows.dim, panel.grad_out_t, lanes);
  const Vector scale = broadcast(rows.scale);
  for (Offset i = 0; i < rows.dim * lanes; i += width) store(panel.qt + i, load(panel.qt + i) * scale);
  for (Offset i = 0; i < rows.queries; ++i)
    for (Offset c = 0; c < rows.dim; ++c) {
      panel.q[i * row_stride(rows.dim) + c] = rows.scale * rows.q[i * rows.dim + c];
      panel.grad_out[i * row_stride(rows.dim) + c] = rows.grad_out[i * rows.dim + c];
    }
  for (int i = 0; i < lanes; ++i) {
    const bool sees =
        i < rows.queries && rows.lse[i] != -infinity;  // else its scores are masked, and any lse is right
    panel.lse[i] = sees ? rows.lse[i] : 0;
    panel.delta[i] = i < rows.queries ? rows.delta[i] : 0;
  }
}

/// dQ += scale * dqt.
void store_panel(const GradientRows<Real>& rows, const Panel& panel) {
  transpose(panel.grad_q_t, lanes, rows.dim, rows.queries, panel.q, rows.dim);  // q is no longer needed
  for (Offset i = 0; i < static_cast<Offset>(rows.queries) * rows.dim; ++i)
    rows.grad_q[i] += rows.scale * panel.q[i];
}

/// Step 1 for the keys j .. j + n - 1 of the span.
template <bool plain>
void probabilities(const KeySpan<Real>& span, Offset j, Offset n, bool masked, Offset dim,
                   const Panel& panel) {
  for_groups<tile_rows>(n, [&](auto rows, Offset i) {
    Vector s[rows.value][tile_vectors] = {};
    multiply_add(s, span.k + (j + i) * dim, dim, 1, panel.qt, lanes, dim);
    RING_ATTENTION_UNROLL
    for (int r = 0; r < rows.value; ++r) {
      RING_ATTENTION_UNROLL
      for (int v = 0; v < tile_vectors; ++v) {
        Real* at = panel.p + (i + r) * lanes + v * width;
        if (!plain && span.bias.data != nullptr) s[r][v] += load(at);
        if (!plain) s[r][v] = adjusted(s[r][v], span, j + i + r, v, masked);
        store(at, exp2((s[r][v] - load(panel.lse + v * width)) * log2_e));
      }
    }
  });
}

/// Step 2. With dropout, whose factors are f: ds = p (f dp - delta), and f p replaces p for step 3.
template <bool drops>
void differentiate_scores(const DropoutLanes<Real>& dropout, Offset j, const Real* values, Offset n,
                          Offset dim, const Panel& panel) {
  for_groups<tile_rows>(n, [&](auto rows, Offset i) {
    Vector dp[rows.value][tile_vectors] = {};
    multiply_add(dp, values + i * dim, dim, 1, panel.grad_out_t, lanes, dim);
    RING_ATTENTION_UNROLL
    for (int r = 0; r < rows.value; ++r) {
      RING_ATTENTION_UNROLL
      for (int v = 0; v < tile_vectors; ++v) {
        const Offset at = (i + r) * lanes + v * width;
        if constexpr (drops) {
          const Vector p = load(panel.p + at), f = dropout_factors(dropout, j + i + r, v);
          store(panel.ds + at, p * (f * dp[r][v] - load(panel.delta + v * width)));
          store(panel.p + at, f * p);
        } else {
          store(panel.ds + at, load(panel.p + at) * (dp[r][v] - load(panel.delta + v * width)));
        }
      }
    }
  });
}

/// row[0 .. columns-1] += x.
inline void add_to(Real* row, Vector x, Offset columns) {
  if (columns >= width)
    store(row, load(row) + x);
  else
    for (Offset c = 0; c < columns; ++c) row[c] += x[c];
}

/// weights[j][i] and rows[i][c] of the queries i of a panel.
struct WeightedRows {
  const Real *weights, *rows;
  Offset queries = 0;
};

/// Steps 3 and 4: gradient[j][c] += sum_i weights[j][i] rows[i][c], of n keys and the queries of all panels.
void add_to_keys(Real* gradient, const WeightedRows (&all)[panels], Offset n, Offset dim) {
  for_groups<tile_vectors>(padded(dim) / width, [&](auto vectors, Offset first) {
    for_groups<tile_rows>(n, [&](auto rows, Offset j) {
      Vector sum[rows.value][vectors.value] = {};
      for (const WeightedRows& panel : all)
        multiply_add(sum, panel.weights + j * lanes, lanes, 1, panel.rows + first * width, row_stride(dim),
                     panel.queries);
      RING_ATTENTION_UNROLL
      for (int r = 0; r < rows.value; ++r) {
        RING_ATTENTION_UNROLL
        for (int v = 0; v < vectors.value; ++v) {
          const Offset c = (first + v) * width;
          add_to(gradient + (j + r) * dim + c, sum[r][v], dim - c);
        }
      }
    });
  });
}

/// Step 5.
void add_to_queries(const Real* keys, Offset n, Offset dim, const Panel& panel) {
  for_groups<tile_rows>(dim, [&](auto rows, Offset c) {
    Vector sum[rows.value][tile_vectors] = {};
    multiply_add(sum, keys + c, 1, dim, panel.ds, lanes, n);
    RING_ATTENTION_UNROLL
    for (int r = 0; r < rows.value; ++r) {
      RING_ATTENTION_UNROLL
      for (int v = 0; v < tile_vectors; ++v) {
        Real* grad_q = panel.grad_q_t + (c + r) * lanes + v * width;
        store(grad_q, load(grad_q) + sum[r][v]);
      }
    }
  });
}

/// Steps 1, 2 and 5 for the keys j .. j + n - 1 of the span. What it calls is inlined, which GCC else leaves off: 3 % in
/// float.
[[gnu::flatten]] void attend_block(const KeySpan<Real>& span, Offset j, Offset n, bool masked,
                                   const GradientRows<Real>& rows, const Panel& panel) {
  const Offset dim = rows.dim;
  if (span.bias.data != nullptr) load_pairs(span.bias, j, n, panel.p);
  if (masked || span.slope != 0 || span.bias.data != nullptr)
    probabilities<false>(span, j, n, masked, dim, panel);
  else
    probabilities<true>(span, j, n, masked, dim, panel);
  if (span.dropout.low != nullptr)
    differentiate_scores<true>(span.dropout, j, span.v + j * dim, n, dim, panel);
  else
    differentiate_scores<false>(span.dropout, j, span.v + j * dim, n, dim, panel);
  if (span.grad_bias.data != nullptr) add_pairs(span.grad_bias, j, n, panel.ds);
  if (rows.grad_q != nullptr) add_to_queries(span.k + j * dim, n, dim, panel);
}

Size workspace_elements(int dim) { return static_cast<Size>(Panel::elements(dim) * panels * lanes); }

void load_tile(const GradientRows<Real>& rows, Real* workspace) {
  for_panels(rows, [&](const GradientRows<Real>& part, int first) {
    load_panel(part, Panel(workspace, rows.dim, first));
  });
}

void store_tile(const GradientRows<Real>& rows, Real* workspace) {
  for_panels(rows, [&](const GradientRows<Real>& part, int first) {
    store_panel(part, Panel(workspace, rows.dim, first));
  });
}

void attend(const KeySpan<Real>& span, const GradientRows<Real>& rows, Real* grad_k, Real* grad_v,
            Real* workspace) {
  const SeenKeys seen(span, panels * lanes);
  for (Offset j = seen.begin; j < seen.end; j += block) {
    const Offset n = seen.end - j < block ? seen.end - j : block;
    WeightedRows to_v[panels] = {}, to_k[panels] = {};
    for_panels_that_see(
        span, seen, j, j + n, rows,
        [&](const GradientRows<Real>& part, const KeySpan<Real>& own, int first, bool masked) {
          const Panel panel(workspace, part.dim, first);
          attend_block(own, j, n, masked, part, panel);
          to_v[first / lanes] = {panel.p, panel.grad_out, part.queries};
          to_k[first / lanes] = {panel.ds, panel.q, part.queries};
        });
    if (grad_k == nullptr) continue;
    add_to_keys(grad_v + j * rows.dim, to_v, n, rows.dim);
    add_to_keys(grad_k + j * rows.dim, to_k, n, rows.dim);
  }
}

}  // namespace

namespace RING_ATTENTION_ISA {
extern const BackwardKernel<Real> backward;
const BackwardKernel<Real> backward{panels * lanes, workspace_elements, load_tile, attend, store_tile};
}  // namespace RING_ATTENTION_ISA

}  // namespace ring_attention::cpu
