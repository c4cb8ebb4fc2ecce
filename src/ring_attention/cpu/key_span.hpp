/// \file
/// What the two kernels do with a span of keys: its bias, dropout and mask, and its part for a panel of a tile. As in
/// simd.hpp, everything has internal linkage.
#pragma once

#include "ring_attention/attention/dropout_hash.hpp"
#include "ring_attention/cpu/simd.hpp"

namespace ring_attention::cpu {
namespace {

/// to[j][lane] = bias of the keys first .. first + n - 1, of the lanes that have a row.
inline void load_pairs(const PairMatrix<const Real>& bias, Offset first, Offset n, Real* to) {
  const Real* from = bias.data + first * bias.key;
  if (bias.key == 1) {
    transpose(from, bias.row, bias.queries, n, to, lanes);
    return;
  }
  for (Offset i = 0; i < bias.queries; ++i)
    for (Offset j = 0; j < n; ++j) to[j * lanes + i] = from[i * bias.row + j * bias.key];
}

/// The inverse, for a gradient: added to what is there.
inline void add_pairs(const PairMatrix<Real>& gradient, Offset first, Offset n, const Real* from) {
  Real* to = gradient.data + first * gradient.key;
  const Offset whole_keys = gradient.key == 1 ? n - n % width : 0;
  const Offset whole_rows = gradient.queries - gradient.queries % width;
  Real block[width * width];
  for (Offset i = 0; i < whole_rows; i += width)
    for (Offset j = 0; j < whole_keys; j += width) {
      transpose_block(from + j * lanes + i, lanes, block, width);
      for (int r = 0; r < width; ++r) {
        Real* row = to + (i + r) * gradient.row + j;
        store(row, load(row) + load(block + r * width));
      }
    }
  for (Offset i = 0; i < gradient.queries; ++i)
    for (Offset j = i < whole_rows ? whole_keys : 0; j < n; ++j)
      to[i * gradient.row + j * gradient.key] += from[j * lanes + i];
}

/// The factors of the dropout for key j and vector v of the queries: 0 or the scale.
inline Vector dropout_factors(const DropoutLanes<Real>& dropout, Offset j, int v) {
  const Words key = Words{} + (dropout.first + static_cast<unsigned>(j) * dropout.step);
  const Words word = dropout_word(load(dropout.low + v * width), load(dropout.high + v * width), key);
  const Ints kept = (Ints)(word < Words{} + dropout.threshold);
  return (Vector)((Integers)broadcast(dropout.scale) & __builtin_convertvector(kept, Integers));
}

constexpr Real log2_e = static_cast<Real>(1.44269504088896340736);
constexpr Real infinity = __builtin_inf();

/// Whether a cap, a dense bias or `adjusted` changes a score of a block of keys.
inline bool changes_scores(const KeySpan<Real>& span, bool masked) {
  return masked || span.slope != 0 || span.softcap != 0 || span.bias.data != nullptr;
}

/// softcap * tanh(s / softcap), or s without a cap.
inline Vector capped(Vector s, const KeySpan<Real>& span) {
  return span.softcap == 0 ? s : fma(broadcast(span.softcap), tanh(s / span.softcap), broadcast(0));
}

/// The derivative of `capped`, from its result: 1 - tanh^2.
inline Vector slope_of_cap(Vector capped, const KeySpan<Real>& span) {
  const Vector ratio = capped / span.softcap;
  return (1 - ratio) * (1 + ratio);
}

/// Adds dS of the keys first .. first + n - 1, ds[j][lane], to the gradients of the terms of the span.
inline void add_to_terms(const KeySpan<Real>& span, Offset first, Offset n, const Real* ds) {
  if (span.grad_bias.data != nullptr) add_pairs(span.grad_bias, first, n, ds);
}

/// ALiBi and mask of the scores of key j with the queries of vector v.
inline Vector adjusted(Vector s, const KeySpan<Real>& span, Offset j, int v, bool masked) {
  if (span.slope != 0) {
    const Vector distance =
        fma(broadcast(static_cast<Real>(j)), broadcast(span.stride), load(span.distance + v * width));
    s = fma(broadcast(-span.slope), absolute(distance), s);
  }
  if (!masked) return s;
  const Integers key = Integers{} + static_cast<Integer>(j);
  const auto seen = (load(span.begin + v * width) <= key) & (key < load(span.end + v * width));
  return seen ? s : broadcast(-infinity);
}

template <class T>
inline PairMatrix<T> pairs_of_panel(PairMatrix<T> pairs, Offset first) {
  if (pairs.data == nullptr) return pairs;
  const Offset left = pairs.queries - first;
  pairs.data += first * pairs.row;
  pairs.queries = static_cast<int>(left < lanes ? left : lanes);
  return pairs;
}

/// The span as the lanes from `first` on see it.
inline KeySpan<Real> span_of_panel(KeySpan<Real> span, Offset first) {
  span.begin += first;
  span.end += first;
  if (span.distance != nullptr) span.distance += first;
  span.bias = pairs_of_panel(span.bias, first);
  span.grad_bias = pairs_of_panel(span.grad_bias, first);
  if (span.dropout.low != nullptr) {
    span.dropout.low += first;
    span.dropout.high += first;
  }
  return span;
}

/// The rows of a panel: `queries` of them, from `first` on.
inline QueryRows<Real> rows_of_panel(QueryRows<Real> rows, Offset first, int queries) {
  rows.queries = queries;
  rows.q += first * rows.dim;
  rows.o += first * rows.value_dim;
  rows.m += first;
  rows.l += first;
  return rows;
}
inline GradientRows<Real> rows_of_panel(GradientRows<Real> rows, Offset first, int queries) {
  rows.queries = queries;
  rows.q += first * rows.dim;
  rows.grad_out += first * rows.value_dim;
  rows.lse += first;
  rows.delta += first;
  rows.grad_q += first * rows.dim;
  return rows;
}

/// Calls visit(rows of the panel, its first lane) for each panel that has queries.
template <class Rows, class Visit>
inline void for_panels(const Rows& rows, Visit visit) {
  for (int first = 0; first < panels * lanes && first < rows.queries; first += lanes) {
    const int left = rows.queries - first;
    visit(rows_of_panel(rows, first, left < lanes ? left : lanes), first);
  }
}

/// Which keys of a span some of the first `count` lanes see, and which all of them.
struct VisibleKeys {
  VisibleKeys(const KeySpan<Real>& span, int count) {
    for (int i = 0; i < count; ++i) {
      begin = span.begin[i] < begin ? span.begin[i] : begin;
      end = span.end[i] > end ? span.end[i] : end;
      all_begin = span.begin[i] > all_begin ? span.begin[i] : all_begin;
      all_end = span.end[i] < all_end ? span.end[i] : all_end;
    }
  }
  [[nodiscard]] bool by_all(Offset from, Offset to) const { return all_begin <= from && to <= all_end; }
  [[nodiscard]] bool by_any(Offset from, Offset to) const { return begin < to && from < end; }

  static constexpr Offset huge = 0x7fffffff;
  Offset begin = huge, end = 0;
  Offset all_begin = 0, all_end = huge;
};

/// Calls visit(rows of the panel, its span, its first lane, whether the mask hides a pair, the end of the keys that it
/// sees) for each panel of which a query sees a key of from .. to - 1. `seen` is what the tile sees.
template <class Rows, class Visit>
inline void for_panels_that_see(const KeySpan<Real>& span, const VisibleKeys& seen, Offset from, Offset to,
                                const Rows& rows, Visit visit) {
  bool masked = !seen.by_all(from, to);
  Offset end = to;
  const bool by_panel = panels > 1 && masked;
  for_panels(rows, [&](const Rows& part, int first) {
    const KeySpan<Real> own = span_of_panel(span, first);
    if (by_panel) {
      const VisibleKeys seen_by_panel(own, lanes);
      if (!seen_by_panel.by_any(from, to)) return;
      masked = !seen_by_panel.by_all(from, to);
      end = seen_by_panel.end < to ? seen_by_panel.end : to;
    }
    visit(part, own, first, masked, end);
  });
}

}  // namespace
}  // namespace ring_attention::cpu
