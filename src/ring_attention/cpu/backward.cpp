#include "ring_attention/cpu/backward.hpp"

#include "ring_attention/cpu/threads.hpp"

namespace ring_attention {

using cpu::QueryTile;

template <class T>
CpuBackward<T>::CpuBackward(Scoring scoring, const CpuOptions& options)
    : scoring_(std::move(scoring)), threads_(options.threads), kernel_(kernels<T>(options.isa).backward) {
  require(threads_ >= 1, "CpuBackward: at least one thread");
}

template <class T>
void CpuBackward<T>::begin(const BackwardInputs<T>& forward, TokenRanges ranges) {
  const Shape& q = forward.q.shape();
  require(q == forward.out.shape() && q == forward.grad_out.shape() && q.per_row() == forward.lse.shape() &&
              q.seq == count(ranges),
          "CpuBackward: q, out, dO and lse belong to the same queries");
  require_bias_shape(forward.terms.bias.shape(), q);
  forward_ = forward;
  q_ranges_ = std::move(ranges);
  tiles_ = cpu::query_tiles(q_ranges_, kernel_.queries(static_cast<int>(q.dim)));
  delta_ = row_dot(forward.grad_out, forward.out);
  grad_q_ = Tensor<T>(q);
  grad_bias_ = Tensor<T>(forward.terms.bias.shape());
  workspace_ = cpu::workspaces<T>(threads_, kernel_.workspace(static_cast<int>(q.dim)));
}

template <class T>
void CpuBackward<T>::accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                                const Progress& progress) {
  const Shape& q = forward_.q.shape();
  const Index group = require_attention_shapes(q, kv.k.shape(), kv.v.shape());
  require(kv.k.shape() == gradient.k.shape() && kv.v.shape() == gradient.v.shape() &&
              kv.k.shape().seq == count(kv.ranges),
          "CpuBackward: k, v, dk and dv belong to the same keys");
  const Index kv_heads = kv.k.shape().heads, pairs = q.batch * kv_heads;

  // Every tile of queries of the group of one KV head, in one order.
  const auto pass = [&](Index pair, const std::vector<KeyRange>& segments, Wanted wanted, int worker) {
    for (Index in_group = 0; in_group < group; ++in_group)
      for (const QueryTile& tile : tiles_) {
        differentiate(kv, gradient, pair / kv_heads, pair % kv_heads * group + in_group, pair % kv_heads,
                      tile, segments, wanted, workspace_.view().row(0, 0, worker).data());
        if (progress && worker == 0) progress();
      }
  };
  std::vector<KeyRange> all;
  Index first = 0;
  for (const TokenRange& keys : kv.ranges) {
    all.push_back({keys, first});
    first += keys.count;
  }
  const Shape& bias = grad_bias_.shape();
  const bool shares_bias = grad_bias_.size() > 0 && (bias.batch < q.batch || bias.heads < q.heads);
  if (pairs >= threads_ && (threads_ == 1 || !shares_bias)) {
    for_each_task(pairs, threads_, [&](Index pair, int worker) { pass(pair, all, Wanted::all, worker); });
    return;
  }

  // Fewer pairs than threads: dK,dV by segments of keys, then dQ by tiles of queries. No two tasks write the same.
  const Index parts = (threads_ + pairs - 1) / std::max<Index>(pairs, 1);
  for_each_task(pairs * parts, threads_, [&](Index task, int worker) {
    std::vector<KeyRange> part;
    for (const KeyRange& range : all) {
      const Index from = range.keys.count * (task % parts) / parts;
      const Index to = range.keys.count * (task % parts + 1) / parts;
      if (from < to) part.push_back({range.keys.slice(from, to - from), range.first + from});
    }
    pass(task / parts, part, Wanted::keys, worker);
  });
  const auto tiles = static_cast<Index>(tiles_.size());
  const auto of_queries = [&](Index batch, Index head, Index tile, int worker) {
    differentiate(kv, gradient, batch, head, head / group, tiles_[static_cast<std::size_t>(tile)], all,
                  Wanted::queries, workspace_.view().row(0, 0, worker).data());
    if (progress && worker == 0) progress();
  };
  if (shares_bias)
    for_each_task(tiles, threads_, [&](Index tile, int worker) {
      for (Index batch = 0; batch < q.batch; ++batch)
        for (Index head = 0; head < q.heads; ++head) of_queries(batch, head, tile, worker);
    });
  else
    for_each_task(q.batch * q.heads * tiles, threads_, [&](Index task, int worker) {
      of_queries(task / tiles / q.heads, task / tiles % q.heads, task % tiles, worker);
    });
}

template <class T>
void CpuBackward<T>::differentiate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient, Index batch,
                                   Index head, Index kv_head, const QueryTile& tile,
                                   const std::vector<KeyRange>& segments, Wanted wanted, T* workspace) {
  const cpu::GradientRows<T> rows{
      static_cast<int>(tile.queries.count),
      static_cast<int>(forward_.q.shape().dim),
      static_cast<T>(scoring_.scale),
      forward_.q.row(batch, head, tile.first).data(),
      forward_.grad_out.row(batch, head, tile.first).data(),
      &forward_.lse(batch, head, tile.first),
      &delta_.view()(batch, head, tile.first),
      wanted == Wanted::keys ? nullptr : grad_q_.view().row(batch, head, tile.first).data()};
  cpu::Lanes<T> lanes;
  bool loaded = false;
  for (const KeyRange& segment : segments) {
    const auto at = [&](const auto& array) { return array.row(batch, kv_head, segment.first).data(); };
    const View<T> grad_bias = wanted == Wanted::keys ? View<T>() : grad_bias_.view();
    if (!lanes.look(scoring_, batch, head, tile, segment.keys, at(kv.k), at(kv.v), forward_.terms.bias,
                    grad_bias))
      continue;
    if (!std::exchange(loaded, true)) kernel_.load(rows, workspace);
    const bool keys = wanted != Wanted::queries;
    kernel_.attend(lanes.span(), rows, keys ? at(gradient.k) : nullptr, keys ? at(gradient.v) : nullptr,
                   workspace);
  }
  if (loaded && wanted != Wanted::keys) kernel_.store(rows, workspace);
}

template <class T>
Tensor<T> CpuBackward<T>::finish() {
  workspace_ = {};
  return std::move(grad_q_);
}

template class CpuBackward<float>;
template class CpuBackward<double>;

}  // namespace ring_attention
