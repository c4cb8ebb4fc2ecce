#include "ring_attention/attention/softmax.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"

namespace ring_attention {

template <class T>
void softmax_naive(std::span<const T> x, std::span<T> p) {
  require(x.size() == p.size(), "softmax: x and p differ in length");
  T sum = 0;
  for (const T score : x) sum += std::exp(score);
  for (std::size_t i = 0; i < x.size(); ++i) p[i] = std::exp(x[i]) / sum;
}

template <class T>
void softmax_safe(std::span<const T> x, std::span<T> p) {
  SoftmaxState<T> state;
  for (const T score : x) state.m = std::max(state.m, score);
  for (const T score : x) state.l += rescale(score, state.m);
  normalise(x, state, p);
}

template <class T>
void softmax_online(std::span<const T> x, std::span<T> p) {
  normalise(x, online_state(x), p);
}

template <class T>
SoftmaxState<T> online_state(std::span<const T> x) {
  SoftmaxState<T> state;
  for (const T score : x) state = merge(state, softmax_state(score));
  return state;
}

template <class T>
void normalise(std::span<const T> x, const SoftmaxState<T>& state, std::span<T> p) {
  require(x.size() == p.size(), "softmax: x and p differ in length");
  for (std::size_t i = 0; i < x.size(); ++i) p[i] = state.l != 0 ? rescale(x[i], state.m) / state.l : T{0};
}

#define RING_ATTENTION_INSTANTIATE(T)                             \
  template void softmax_naive(std::span<const T>, std::span<T>);  \
  template void softmax_safe(std::span<const T>, std::span<T>);   \
  template void softmax_online(std::span<const T>, std::span<T>); \
  template SoftmaxState<T> online_state(std::span<const T>);      \
  template void normalise(std::span<const T>, const SoftmaxState<T>&, std::span<T>);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention
