#include "ring_attention/attention/partial.hpp"

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

/// Calls row(b, h, s) for every row of `shape`.
void for_each_row(const Shape& shape, auto row) {
  for (Index b = 0; b < shape.batch; ++b)
    for (Index h = 0; h < shape.heads; ++h)
      for (Index s = 0; s < shape.seq; ++s) row(b, h, s);
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

template void merge(Partial<float>&, const Partial<float>&);
template void merge(Partial<double>&, const Partial<double>&);
template AttentionResult<float> finish(Partial<float>&&);
template AttentionResult<double> finish(Partial<double>&&);

}  // namespace ring_attention
