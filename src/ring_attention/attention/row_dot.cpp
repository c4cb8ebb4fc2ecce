#include "ring_attention/attention/row_dot.hpp"

namespace ring_attention {

template <class T>
Tensor<T> row_dot(View<const T> grad_out, View<const T> out, std::optional<View<const T>> grad_lse) {
  Tensor<T> delta(out.shape().per_row());
  for (Index b = 0; b < out.shape().batch; ++b)
    for (Index h = 0; h < out.shape().heads; ++h)
      for (Index s = 0; s < out.shape().seq; ++s) {
        T sum = grad_lse ? -(*grad_lse)(b, h, s) : T{0};
        for (Index d = 0; d < out.shape().dim; ++d) sum += grad_out(b, h, s, d) * out(b, h, s, d);
        delta.view()(b, h, s) = sum;
      }
  return delta;
}

template Tensor<float> row_dot(View<const float>, View<const float>, std::optional<View<const float>>);
template Tensor<double> row_dot(View<const double>, View<const double>, std::optional<View<const double>>);
}  // namespace ring_attention
