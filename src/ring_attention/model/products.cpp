#include "ring_attention/model/products.hpp"

#include "ring_attention/core/eigen.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::model {
namespace {

template <class T>
MatrixMap<T> rows(const View<T>& x) {
  const Shape& shape = x.shape();
  return {x.data(), shape.batch * shape.heads * shape.seq, shape.dim};
}

void require_linear(const Shape& x, const Shape& w, const Shape& y) {
  require(x.dim == w.seq && y.dim == w.dim && x.size() / x.dim == y.size() / y.dim,
          "y = x w: " + to_string(y) + " = " + to_string(x) + " " + to_string(w));
}

}  // namespace

template <class T>
void multiply(View<const T> x, View<const T> w, View<T> y) {
  require_linear(x.shape(), w.shape(), y.shape());
  rows(y).noalias() = rows(x) * rows(w);
}

template <class T>
void add_input_gradient(View<const T> grad_y, View<const T> w, View<T> grad_x) {
  require_linear(grad_x.shape(), w.shape(), grad_y.shape());
  rows(grad_x).noalias() += rows(grad_y) * rows(w).transpose();
}

template <class T>
void add_weight_gradient(View<const T> x, View<const T> grad_y, View<T> grad_w) {
  require_linear(x.shape(), grad_w.shape(), grad_y.shape());
  rows(grad_w).noalias() += rows(x).transpose() * rows(grad_y);
}

template void multiply(View<const float>, View<const float>, View<float>);
template void multiply(View<const double>, View<const double>, View<double>);
template void add_input_gradient(View<const float>, View<const float>, View<float>);
template void add_input_gradient(View<const double>, View<const double>, View<double>);
template void add_weight_gradient(View<const float>, View<const float>, View<float>);
template void add_weight_gradient(View<const double>, View<const double>, View<double>);

}  // namespace ring_attention::model
