#include "model/products.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"

namespace ring_attention::model {
namespace {

/// The sizes of y = x w.
struct Linear {
  Linear(const Shape& x, const Shape& w, const Shape& y) : rows(y.size() / y.dim), in(w.seq), out(w.dim) {
    require(x.dim == in && y.dim == out && x.size() / x.dim == rows,
            "y = x w: " + to_string(y) + " = " + to_string(x) + " " + to_string(w));
  }
  Index rows, in, out;
};

}  // namespace

template <class T>
void multiply(View<const T> x, View<const T> w, View<T> y, Isa isa) {
  const Linear of(x.shape(), w.shape(), y.shape());
  std::ranges::fill(y.elements(), T{0});
  kernels<T>(isa).add_product({of.rows, of.out, of.in, x.data(), of.in, 1, w.data(), of.out, 1, y.data()});
}

template <class T>
void add_input_gradient(View<const T> grad_y, View<const T> w, View<T> grad_x, Isa isa) {
  const Linear of(grad_x.shape(), w.shape(), grad_y.shape());
  kernels<T>(isa).add_product(
      {of.rows, of.in, of.out, grad_y.data(), of.out, 1, w.data(), 1, of.out, grad_x.data()});
}

template <class T>
void add_weight_gradient(View<const T> x, View<const T> grad_y, const GradientSum<T>& grad_w,
                         const RowTiles& rows) {
  const Linear of(x.shape(), grad_w.shape(), grad_y.shape());
  rows.for_each(of.rows, [&](const Interval& some) {
    grad_w.add([&](View<T> sum) {
      kernels<T>(rows.isa).add_product({of.in, of.out, some.end - some.begin, x.data() + some.begin * of.in,
                                        1, of.in, grad_y.data() + some.begin * of.out, of.out, 1,
                                        sum.data()});
    });
  });
}

template void multiply(View<const float>, View<const float>, View<float>, Isa);
template void add_input_gradient(View<const float>, View<const float>, View<float>, Isa);
template void add_weight_gradient(View<const float>, View<const float>, const GradientSum<float>&,
                                  const RowTiles&);
template void multiply(View<const double>, View<const double>, View<double>, Isa);
template void add_input_gradient(View<const double>, View<const double>, View<double>, Isa);
template void add_weight_gradient(View<const double>, View<const double>, const GradientSum<double>&,
                                  const RowTiles&);

}  // namespace ring_attention::model
