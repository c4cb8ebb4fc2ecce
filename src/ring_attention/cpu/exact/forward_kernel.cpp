/// \file
/// The fast forward of a tile of keys, as a term of exact sums: (o, m, l) of a panel become terms o 2^E and l 2^E.
#define RING_ATTENTION_ONLY_ARITHMETIC
#include "ring_attention/cpu/forward_kernel.cpp"  // NOLINT(bugprone-suspicious-include)
#include "ring_attention/cpu/exact/simd_sum.hpp"

namespace ring_attention::cpu {
namespace {

/// Behind the panel in the workspace.
struct ExactPanel : Panel {
  ExactPanel(Real* workspace, const QueryRows<Real>& rows)
      : Panel(workspace, rows, 0),
        o_sums(ot + static_cast<Offset>(rows.value_dim) * lanes, rows.value_dim),
        l_sums(ot + (rows.value_dim + PanelSums::elements(rows.value_dim)) * lanes, 1) {}
  static Offset elements(Offset dim, Offset value_dim) {
    return Panel::elements(dim, value_dim) + PanelSums::elements(value_dim) + PanelSums::elements(1);
  }
  PanelSums o_sums, l_sums;
};

Size exact_workspace(HeadWidths widths) {
  return static_cast<Size>(ExactPanel::elements(widths.k, widths.v) * lanes);
}

/// The queries, and no term.
void load_exact(const QueryRows<Real>& rows, Real* workspace) {
  const ExactPanel panel(workspace, rows);
  for (Offset i = 0; i < static_cast<Offset>(rows.dim) * lanes; ++i) panel.qt[i] = 0;
  transpose(rows.q, rows.dim, rows.queries, rows.dim, panel.qt, lanes);
  const Vector scale = broadcast(rows.scale);
  for (Offset i = 0; i < rows.dim * lanes; i += width) store(panel.qt + i, load(panel.qt + i) * scale);
  clear(panel.o_sums);
  clear(panel.l_sums);
}

/// Returns log2(e) m - E for E = log2(e) m, rounded up. E is at least -2e9; NaN for an m whose E is beyond 2e9.
inline Real fraction_of_power(Real m, int& exponent) {
  constexpr int most = 2'000'000'000;
  const double power = double{m} * 1.44269504088896340736;
  exponent = power < -most ? -most : power < most ? static_cast<int>(power) : 0;  // towards 0
  if (power < -most) return 0;
  if (!(power < most)) return __builtin_nanf("");
  if (exponent < power) ++exponent;
  return static_cast<Real>(power - exponent);
}

void attend_exact(const KeySpan<Real>& span, const QueryRows<Real>& rows, Real* workspace) {
  const ExactPanel panel(workspace, rows);
  for (Offset i = 0; i < rows.value_dim * lanes; ++i) panel.ot[i] = 0;
  for (int i = 0; i < lanes; ++i) {
    panel.m[i] = -infinity;
    panel.l[i] = 0;
  }
  attend<true>(span, rows, workspace);
  int exponent[lanes];
  bool present[lanes];
  Real factor[lanes];
  for (int i = 0; i < lanes; ++i) {
    const Real m = panel.m[i];
    // A hidden tile is no term, NaN is one.
    present[i] = i < rows.queries && (m != -infinity || panel.l[i] != 0);
    factor[i] = fraction_of_power(m, exponent[i]);
  }
  for (int v = 0; v < tile_vectors; ++v) {
    const Vector factors = exp2(load(factor + v * width));
    store(panel.l + v * width, load(panel.l + v * width) * factors);
    for (Offset c = 0; c < rows.value_dim; ++c) {
      Real* o = panel.ot + c * lanes + v * width;
      store(o, load(o) * factors);
    }
  }
  add(panel.o_sums, panel.ot, exponent, present);
  add(panel.l_sums, panel.l, exponent, present);
}

void store_exact(const QueryRows<Real>& rows, Real* workspace) {
  const ExactPanel panel(workspace, rows);
  const Offset of_o = PanelSums::elements(rows.value_dim), both = of_o + PanelSums::elements(1);
  store_rows(panel.o_sums, rows.queries, rows.o, both);
  store_rows(panel.l_sums, rows.queries, rows.o + of_o, both);
}

}  // namespace

namespace RING_ATTENTION_ISA {
#if !defined(RING_ATTENTION_EXACT_FORWARD)
#define RING_ATTENTION_EXACT_FORWARD exact_forward
#endif
extern const ForwardKernel<Real> RING_ATTENTION_EXACT_FORWARD;
const ForwardKernel<Real> RING_ATTENTION_EXACT_FORWARD{lanes, exact_workspace, load_exact, attend_exact,
                                                       store_exact};
}  // namespace RING_ATTENTION_ISA

}  // namespace ring_attention::cpu
