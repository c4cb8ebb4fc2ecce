/// \file
/// The fast backward of a tile of keys, as a term of exact sums: dQ. dK and dV, which are floats, are those of the
/// caller's tile of queries.
#define RING_ATTENTION_ONLY_ARITHMETIC
#include "ring_attention/cpu/backward_kernel.cpp"  // NOLINT(bugprone-suspicious-include)
#include "ring_attention/cpu/exact/simd_sum.hpp"

namespace ring_attention::cpu {
namespace {

PanelSums sums_of(Real* workspace, const GradientRows<Real>& rows) {
  return {workspace + Panel::elements(rows.dim, rows.value_dim) * lanes, rows.dim};
}

BackwardTile one_panel(HeadWidths widths) { return tile_of_panels(1, widths); }

Size exact_workspace(HeadWidths widths) {
  return static_cast<Size>((Panel::elements(widths.k, widths.v) + PanelSums::elements(widths.k)) * lanes);
}

void load_exact(const GradientRows<Real>& rows, Real* workspace) {
  load_tile(rows, workspace);
  clear(sums_of(workspace, rows));
}

void attend_exact(const KeySpan<Real>& span, const GradientRows<Real>& rows, Real* grad_k, Real* grad_v,
                  Real* workspace) {
  const Panel panel(workspace, rows, 0);
  attend(span, rows, grad_k, grad_v, workspace);
  scale_query_gradient(rows, panel);
  constexpr int exponent[lanes] = {};
  bool present[lanes];
  for (int i = 0; i < lanes; ++i) present[i] = i < rows.queries;
  add(sums_of(workspace, rows), panel.grad_q_t, exponent, present);
  for (Offset i = 0; i < rows.dim * lanes; ++i) panel.grad_q_t[i] = 0;
}

void store_exact(const GradientRows<Real>& rows, Real* workspace) {
  store_rows(sums_of(workspace, rows), rows.queries, rows.grad_q, PanelSums::elements(rows.dim));
}

}  // namespace

namespace RING_ATTENTION_ISA {
extern const BackwardKernel<Real> exact_backward;
const BackwardKernel<Real> exact_backward{one_panel, exact_workspace, load_exact, attend_exact, store_exact};
}  // namespace RING_ATTENTION_ISA

}  // namespace ring_attention::cpu
