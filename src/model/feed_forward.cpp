#include "model/feed_forward.hpp"

#include <algorithm>

#include "model/products.hpp"
#include "model/rms_norm.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::model {
namespace {

/// Rows [first, first + count) of an array `[batch, 1, tokens, width]`, taken as batch * tokens rows.
template <class T>
View<T> some_rows(const View<T>& x, Index first, Index count) {
  return {x.data() + first * x.shape().dim, {1, 1, count, x.shape().dim}};
}

/// Calls visit(first row, rows) for every chunk.
void for_each_chunk(const Shape& y, Index chunk, const RowTiles& tiles, auto visit) {
  require(chunk >= 1, "feed-forward: a chunk has at least one row");
  const Index rows = y.batch * y.heads * y.seq;
  if (tiles.exact)
    return tiles.for_each(rows, [&](const Interval& tile) { visit(tile.begin, tile.end - tile.begin); });
  for (Index first = 0; first < rows; first += chunk) visit(first, std::min(chunk, rows - first));
}

/// n = norm(y) and h = n w1 of a chunk.
template <class T>
struct Hidden {
  Hidden(View<const T> y, const FeedForward<const T>& weights, Isa isa)
      : n(y.shape()), h({1, 1, y.shape().seq, weights.w1.shape().dim}) {
    rms_norm(y, weights.norm, n.view());
    multiply(std::as_const(n).view(), weights.w1, h.view(), isa);
  }
  Tensor<T> n, h;
};

template <class T>
void relu(View<T> h) {
  for (T& number : h.elements()) number = std::max(number, T{0});
}

}  // namespace

template <class T>
Tensor<T> feed_forward(View<const T> y, const FeedForward<const T>& weights, Index chunk,
                       const RowTiles& tiles) {
  Tensor<T> z(y.shape());
  for_each_chunk(y.shape(), chunk, tiles, [&](Index first, Index rows) {
    Hidden<T> hidden(some_rows(y, first, rows), weights, tiles.isa);
    relu(hidden.h.view());
    multiply<T>(hidden.h, weights.w2, some_rows(z.view(), first, rows), tiles.isa);
  });
  return z;
}

template <class T>
Tensor<T> feed_forward_gradient(View<const T> y, const FeedForward<const T>& weights, View<const T> grad_z,
                                const GradientSum<T>& grad_w1, const GradientSum<T>& grad_w2, Index chunk,
                                const RowTiles& tiles) {
  Tensor<T> grad_n(y.shape());
  for_each_chunk(y.shape(), chunk, tiles, [&](Index first, Index rows) {
    const View<const T> dz = some_rows(grad_z, first, rows);
    Hidden<T> hidden(some_rows(y, first, rows), weights, tiles.isa);
    relu(hidden.h.view());
    // forward: z = h w2; so now dw2 += h^T dz and dh = dz w2^T.
    Tensor<T> grad_h(hidden.h.shape());
    add_weight_gradient<T>(hidden.h, dz, grad_w2, tiles.isa);
    add_input_gradient<T>(dz, weights.w2, grad_h, tiles.isa);
    // forward: h = relu(n w1); so now the gradient is that of h where h is positive, else 0.
    for (Index i = 0; i < grad_h.size(); ++i)
      grad_h.data()[i] = hidden.h.data()[i] > 0 ? grad_h.data()[i] : 0;
    // forward: n w1; so now dw1 += n^T dh and dn = dh w1^T.
    add_weight_gradient<T>(hidden.n, grad_h, grad_w1, tiles.isa);
    add_input_gradient<T>(grad_h, weights.w1, some_rows(grad_n.view(), first, rows), tiles.isa);
  });
  return grad_n;
}

template Tensor<float> feed_forward(View<const float>, const FeedForward<const float>&, Index,
                                    const RowTiles&);
template Tensor<float> feed_forward_gradient(View<const float>, const FeedForward<const float>&,
                                             View<const float>, const GradientSum<float>&,
                                             const GradientSum<float>&, Index, const RowTiles&);
template Tensor<double> feed_forward(View<const double>, const FeedForward<const double>&, Index,
                                     const RowTiles&);
template Tensor<double> feed_forward_gradient(View<const double>, const FeedForward<const double>&,
                                              View<const double>, const GradientSum<double>&,
                                              const GradientSum<double>&, Index, const RowTiles&);

}  // namespace ring_attention::model
