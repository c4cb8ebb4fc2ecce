#include "ring_attention/attention/partial.hpp"

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

/// Calls row(b, h, s) for every row of `shape`.
template <class Row>
void for_each_row(const Shape& shape, Row row) {
  for (Index b = 0; b < shape.batch; ++b)
    for (Index h = 0; h < shape.heads; ++h)
      for (Index s = 0; s < shape.seq; ++s) row(b, h, s);
}

/// log(sigmoid(x)) without overflow on either side.
template <class T>
T log_sigmoid(T x) {
  return std::min(x, T{0}) - std::log1p(std::exp(-std::abs(x)));
}

/// sigmoid(x); exp is only taken of what is not positive.
template <class T>
T sigmoid(T x) {
  const T e = std::exp(-std::abs(x));
  return (x < 0 ? e : T{1}) / (1 + e);
}

}  // namespace

template <class T>
void merge(Partial<T>& into, const Partial<T>& from) {
  require(into.o.shape() == from.o.shape(), "merge: the partial states have different shapes");
  for_each_row(into.o.shape(), [&](Index b, Index h, Index s) {
    SoftmaxState<T> state{into.m.view()(b, h, s), into.l.view()(b, h, s)};
    merge_row(state, into.o.view().row(b, h, s), {from.m.view()(b, h, s), from.l.view()(b, h, s)},
              from.o.view().row(b, h, s));
    into.m.view()(b, h, s) = state.m;
    into.l.view()(b, h, s) = state.l;
  });
}

template <class T>
AttentionResult<T> finish(Partial<T>&& partial) {
  AttentionResult<T> result{std::move(partial.o), std::move(partial.m)};
  const View<T> out = result.out;
  const View<T> lse = result.lse;
  for_each_row(out.shape(), [&](Index b, Index h, Index s) {
    const SoftmaxState<T> state{lse(b, h, s), partial.l.view()(b, h, s)};
    if (state.l != 0)  // a row that saw no key keeps out = 0; a NaN stays visible
      for (T& x : out.row(b, h, s)) x /= state.l;
    lse(b, h, s) = state.lse();
  });
  return result;
}

template <class T>
void merge_normalised(AttentionResult<T>& into, const AttentionResult<T>& piece) {
  require(into.out.shape() == piece.out.shape(), "merge_normalised: the pieces have different shapes");
  for_each_row(into.out.shape(), [&](Index b, Index h, Index s) {
    T& lse = into.lse.view()(b, h, s);
    const T lse_b = piece.lse.view()(b, h, s);
    const T top = std::max(lse, lse_b);
    if (top == negative_infinity<T>) return;  // neither saw a key
    const T merged = top + std::log1p(std::exp(-std::abs(lse - lse_b)));
    const T keep = rescale(lse, merged);
    const T add = rescale(lse_b, merged);
    const auto out = into.out.view().row(b, h, s);
    const auto out_b = piece.out.view().row(b, h, s);
    for (std::size_t d = 0; d < out.size(); ++d) out[d] = keep * out[d] + add * out_b[d];
    lse = merged;
  });
}

template <class T>
void merge_normalised_sigmoid(AttentionResult<T>& into, const AttentionResult<T>& piece) {
  require(into.out.shape() == piece.out.shape(),
          "merge_normalised_sigmoid: the pieces have different shapes");
  for_each_row(into.out.shape(), [&](Index b, Index h, Index s) {
    T& lse = into.lse.view()(b, h, s);
    const T lse_b = piece.lse.view()(b, h, s);
    const auto out = into.out.view().row(b, h, s);
    const auto out_b = piece.out.view().row(b, h, s);
    if (lse_b == negative_infinity<T>) return;
    if (lse == negative_infinity<T>) {  // the starting state: the formula would give NaN
      std::copy(out_b.begin(), out_b.end(), out.begin());
      lse = lse_b;
      return;
    }
    const T weight = sigmoid(lse_b - lse);
    for (std::size_t d = 0; d < out.size(); ++d) out[d] -= weight * (out[d] - out_b[d]);
    lse -= log_sigmoid(lse - lse_b);
  });
}

#define RING_ATTENTION_INSTANTIATE(T)                                             \
  template void merge(Partial<T>&, const Partial<T>&);                            \
  template AttentionResult<T> finish(Partial<T>&&);                               \
  template void merge_normalised(AttentionResult<T>&, const AttentionResult<T>&); \
  template void merge_normalised_sigmoid(AttentionResult<T>&, const AttentionResult<T>&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention
