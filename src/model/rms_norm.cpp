#include "model/rms_norm.hpp"

#include <cmath>

#include "ring_attention/core/error.hpp"

namespace ring_attention::model {
namespace {

constexpr double epsilon = 1e-6;

/// sum a b.
template <class T>
T dot(const T* a, const T* b, Index n) {
  T sum = 0;
  for (Index c = 0; c < n; ++c) sum += a[c] * b[c];
  return sum;
}

/// r of a row.
template <class T>
T reciprocal_root(const T* x, Index width) {
  return 1 / std::sqrt(dot(x, x, width) / static_cast<T>(width) + static_cast<T>(epsilon));
}

}  // namespace

template <class T>
void rms_norm(View<const T> x, View<const T> gain, View<T> y) {
  require(x.shape() == y.shape() && gain.size() == x.shape().dim, "rms_norm: shapes");
  const Index width = x.shape().dim;
  for (Index at = 0; at < x.size(); at += width) {
    const T r = reciprocal_root(x.data() + at, width);
    for (Index c = 0; c < width; ++c) y.data()[at + c] = x.data()[at + c] * r * gain.data()[c];
  }
}

template <class T>
void add_rms_norm_gradient(View<const T> x, View<const T> gain, View<const T> grad_y, View<T> grad_x,
                           const GradientSum<T>& grad_gain, const RowTiles& rows) {
  require(x.shape() == grad_y.shape() && x.shape() == grad_x.shape() && gain.shape() == grad_gain.shape() &&
              gain.size() == x.shape().dim,
          "rms_norm: shapes");
  const Index width = x.shape().dim;
  const auto add_row = [&](Index at, T* dg) {
    const T* row = x.data() + at;
    const T* dy = grad_y.data() + at;
    const T r = reciprocal_root(row, width);
    // forward: y = x r g; so now dg = sum over the rows of dy x r.
    T dy_g_x = 0;
    for (Index c = 0; c < width; ++c) {
      dg[c] += dy[c] * row[c] * r;
      dy_g_x += dy[c] * gain.data()[c] * row[c];
    }
    // forward: r = (mean(x^2) + eps)^(-1/2); so dr/dx = -r^3 x / width, and dx = r (dy g - x r^2 mean(dy g x)).
    const T along_x = r * r * dy_g_x / static_cast<T>(width);
    for (Index c = 0; c < width; ++c)
      grad_x.data()[at + c] += r * (dy[c] * gain.data()[c] - row[c] * along_x);
  };
  rows.for_each(x.size() / width, [&](const Interval& some) {
    grad_gain.add([&](View<T> sum) {
      for (Index row = some.begin; row < some.end; ++row) add_row(row * width, sum.data());
    });
  });
}

template void rms_norm(View<const float>, View<const float>, View<float>);
template void rms_norm(View<const double>, View<const double>, View<double>);
template void add_rms_norm_gradient(View<const float>, View<const float>, View<const float>, View<float>,
                                    const GradientSum<float>&, const RowTiles&);
template void add_rms_norm_gradient(View<const double>, View<const double>, View<const double>, View<double>,
                                    const GradientSum<double>&, const RowTiles&);

}  // namespace ring_attention::model
