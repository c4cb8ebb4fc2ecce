#include "model/layer.hpp"

#include "model/feed_forward.hpp"
#include "model/heads.hpp"
#include "model/parameters.hpp"
#include "model/products.hpp"
#include "model/rms_norm.hpp"
#include "ring_attention/parallel/collectives/sum.hpp"

namespace ring_attention::model {
namespace {

template <class T>
void add(Tensor<T>& sum, const Tensor<T>& term) {
  host_memory().add(sum.view().elements(), std::span<const T>(term.view().elements()));
}

/// Over the ranks that have the other columns.
template <class T>
void sum_over(AllToAll& tensor, Tensor<T>& partial) {
  all_reduce(tensor, partial.view().elements());
}

template <class T>
FeedForward<T> feed_forward_of(const LayerParameters<T>& p) {
  return {p.norm_2, p.w1, p.w2};
}

/// x w as heads.
template <class T>
Tensor<T> projected(const Tensor<T>& x, View<const T> w, Index dim, const RowTiles& tiles) {
  const Shape& s = x.shape();
  Tensor<T> rows({s.batch, 1, s.seq, w.shape().dim});
  multiply<T>(x, w, rows, tiles.isa);
  return split_heads<T>(rows, w.shape().dim / dim);
}

/// n = norm(x), q, k, v with rotary positions.
template <class T>
struct Projections {
  Projections(const ModelShape& shape, const RankContext<T>& place, const LayerParameters<const T>& w,
              const Tensor<T>& x)
      : n(x.shape()) {
    rms_norm<T>(x, w.norm_1, n);
    q = projected(n, w.wq, shape.dim, place.rows);
    k = projected(n, w.wk, shape.dim, place.rows);
    v = projected(n, w.wv, shape.dim, place.rows);
    rotate<T>(q, place.tokens, shape.rotary, shape.theta, 1);
    rotate<T>(k, place.tokens, shape.rotary, shape.theta, 1);
  }
  Tensor<T> n, q, k, v;
};

/// y = x + sum over the tensor group of out wo.
template <class T>
Tensor<T> after_attention(const RankContext<T>& place, const LayerParameters<const T>& w,
                          const Checkpoint<T>& kept) {
  Tensor<T> y(kept.x.shape());
  const Tensor<T> out = join_heads<T>(kept.attended.out);
  multiply<T>(out, w.wo, y, place.rows.isa);
  sum_over(*place.tensor, y);
  add(y, kept.x);
  return y;
}

/// From dy to the gradients of wo, wq, wk, wv, and of n, this rank's part of it.
template <class T>
Tensor<T> attention_gradient(const LayerOptions& options, const RankContext<T>& place,
                             const LayerParameters<const T>& w, const Checkpoint<T>& kept,
                             const Tensor<T>& grad_y, GradientSums<T>& gradients) {
  const Projections<T> p(options.shape, place, w, kept.x);
  Gradients<T> of_heads;
  {
    const Shape& s = kept.x.shape();
    const Tensor<T> out = join_heads<T>(kept.attended.out);
    Tensor<T> grad_rows({s.batch, 1, s.seq, w.wo.shape().seq});
    // forward: y = x + out wo; so now dwo += out^T dy and dout = dy wo^T.
    add_weight_gradient<T>(out, grad_y, gradients("wo"), place.rows);
    add_input_gradient<T>(grad_y, w.wo, grad_rows, place.rows.isa);
    const Tensor<T> grad_out = split_heads<T>(grad_rows, p.q.shape().heads);
    of_heads = place.attention->backward({p.q, kept.attended.out, kept.attended.lse, grad_out}, p.k, p.v,
                                         options.scoring);
  }
  // forward: q and k turn with the position; so now their gradients turn back.
  rotate<T>(of_heads.q, place.tokens, options.shape.rotary, options.shape.theta, -1);
  rotate<T>(of_heads.k, place.tokens, options.shape.rotary, options.shape.theta, -1);
  // forward: q = n wq, k = n wk, v = n wv; so now dw += n^T d, and dn = dq wq^T + dk wk^T + dv wv^T.
  Tensor<T> grad_n(p.n.shape());
  const auto through = [&](const Tensor<T>& grad_heads, View<const T> weight, const char* name) {
    const Tensor<T> grad_rows = join_heads<T>(grad_heads);
    add_weight_gradient<T>(p.n, grad_rows, gradients(name), place.rows);
    add_input_gradient<T>(grad_rows, weight, grad_n, place.rows.isa);
  };
  through(of_heads.q, w.wq, "wq");
  through(of_heads.k, w.wk, "wk");
  through(of_heads.v, w.wv, "wv");
  return grad_n;
}

}  // namespace

template <class T>
LayerParameters<T>::LayerParameters(const ParameterLayout& layout, std::span<T> flat)
    : norm_1(layout.view(flat, "norm_1")),
      wq(layout.view(flat, "wq")),
      wk(layout.view(flat, "wk")),
      wv(layout.view(flat, "wv")),
      wo(layout.view(flat, "wo")),
      norm_2(layout.view(flat, "norm_2")),
      w1(layout.view(flat, "w1")),
      w2(layout.view(flat, "w2")) {}

template <class T>
Tensor<T> layer_forward(const LayerOptions& options, const RankContext<T>& place,
                        const LayerParameters<const T>& weights, Tensor<T> x, Checkpoint<T>& checkpoint) {
  checkpoint.x = std::move(x);
  {
    const Projections<T> p(options.shape, place, weights, checkpoint.x);
    checkpoint.attended = place.attention->forward(p.q, p.k, p.v, options.scoring);
  }
  Tensor<T> y = after_attention(place, weights, checkpoint);
  Tensor<T> z = feed_forward<T>(y, feed_forward_of(weights), options.chunk, place.rows);
  sum_over(*place.tensor, z);
  add(z, y);
  return z;
}

template <class T>
Tensor<T> layer_backward(const LayerOptions& options, const RankContext<T>& place,
                         const LayerParameters<const T>& weights, const Checkpoint<T>& checkpoint,
                         Tensor<T> grad_z, GradientSums<T>& gradients) {
  // forward: z = y + sum of relu(norm(y) w1) w2; so now dy = dz + what comes through the norm. The gradient of the norm's
  // output is summed over the tensor group first, so every rank has the whole gradient of the gain.
  Tensor<T>& grad_y = grad_z;
  {
    const Tensor<T> y = after_attention(place, weights, checkpoint);
    Tensor<T> grad_n = feed_forward_gradient<T>(y, feed_forward_of(weights), grad_z, gradients("w1"),
                                                gradients("w2"), options.chunk, place.rows);
    sum_over(*place.tensor, grad_n);
    add_rms_norm_gradient<T>(y, weights.norm_2, grad_n, grad_y, gradients("norm_2"), place.rows);
  }
  // forward: y = x + sum of out wo, out = attention(norm(x) ...); so now dx = dy + what comes through the norm.
  Tensor<T> grad_n = attention_gradient(options, place, weights, checkpoint, grad_y, gradients);
  sum_over(*place.tensor, grad_n);
  Tensor<T>& grad_x = grad_y;
  add_rms_norm_gradient<T>(checkpoint.x, weights.norm_1, grad_n, grad_x, gradients("norm_1"), place.rows);
  return std::move(grad_x);
}

#define RING_ATTENTION_INSTANTIATE(T)                                                                 \
  template struct LayerParameters<T>;                                                                 \
  template struct LayerParameters<const T>;                                                           \
  template Tensor<T> layer_forward(const LayerOptions&, const RankContext<T>&,                        \
                                   const LayerParameters<const T>&, Tensor<T>, Checkpoint<T>&);       \
  template Tensor<T> layer_backward(const LayerOptions&, const RankContext<T>&,                       \
                                    const LayerParameters<const T>&, const Checkpoint<T>&, Tensor<T>, \
                                    GradientSums<T>&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention::model
