#include "ring_attention/cpu/engine.hpp"

#include <algorithm>
#include <iterator>

#include "ring_attention/cpu/threads.hpp"

namespace ring_attention {

using cpu::QueryTile;

template <class T>
CpuEngine<T>::CpuEngine(Scoring scoring, const CpuOptions& options)
    : scoring_(std::move(scoring)), threads_(options.threads), kernels_(kernels<T>(options.isa)) {}

template <class T>
void CpuEngine<T>::begin(View<const T> q, TokenRanges ranges, View<const T> bias,
                         std::optional<Index> value_dim) {
  require_queries(q.shape(), ranges, bias.shape());
  q_ = q;
  bias_ = bias;
  q_ranges_ = std::move(ranges);
  intervals_ = cpu::QueryIntervals(scoring_.mask, q_ranges_);
  kernel_ = &forward_kernel(kernels_.forward, static_cast<cpu::Size>(q.shape().seq));
  tiles_ = cpu::query_tiles(q_ranges_, kernel_->lanes);
  const Index columns = value_dim.value_or(q.shape().dim);
  state_ = Partial<T>::empty(q.shape().with_dim(columns));
  workspace_ = cpu::workspaces<T>(
      threads_, kernel_->workspace({static_cast<int>(q.shape().dim), static_cast<int>(columns)}));
}

template <class T>
void CpuEngine<T>::accumulate(const KeyValue<T>& kv, const Progress& progress) {
  const Shape& q = q_.shape();
  const Index group = require_keys({q, state_.o.shape(), bias_.shape()}, kv);
  const auto tiles = static_cast<Index>(tiles_.size());

  // The heads of a group follow each other and share K,V in the cache. The last tiles see most keys under a causal
  // mask: they are done first, so that the threads end at about the same time.
  for_each_task(q.batch * q.heads * tiles, threads_, [&](Index task, int worker) {
    const Index in_group = task % group, kv_head = task / group / tiles;
    const Index batch = kv_head / kv.k.shape().heads, own_kv_head = kv_head % kv.k.shape().heads;
    const QueryTile& tile = tiles_[static_cast<std::size_t>(tiles - 1 - task / group % tiles)];
    attend(kv, batch, own_kv_head * group + in_group, own_kv_head, tile,
           workspace_.view().row(0, 0, worker).data());
    if (progress && worker == 0) progress();
  });
}

template <class T>
void CpuEngine<T>::attend(const KeyValue<T>& kv, Index batch, Index head, Index kv_head,
                          const QueryTile& tile, T* workspace) {
  const cpu::QueryRows<T> rows{
      static_cast<int>(tile.queries.count),      static_cast<int>(q_.shape().dim),
      static_cast<int>(state_.o.shape().dim),    static_cast<T>(scoring_.scale),
      q_.row(batch, head, tile.first).data(),    state_.o.view().row(batch, head, tile.first).data(),
      &state_.m.view()(batch, head, tile.first), &state_.l.view()(batch, head, tile.first)};
  cpu::Lanes<T> lanes;
  bool loaded = false;
  Index first_key = 0;
  for (const TokenRange& keys : kv.ranges) {
    for (int part = 0; part < intervals_.parts(); ++part) {
      if (!lanes.look(scoring_, intervals_, batch, head, tile, part, keys,
                      kv.k.row(batch, kv_head, first_key).data(), kv.v.row(batch, kv_head, first_key).data(),
                      bias_))
        continue;
      if (!std::exchange(loaded, true)) kernel_->load(rows, workspace);
      kernel_->attend(lanes.span(), rows, workspace);
    }
    first_key += keys.count;
  }
  if (loaded) kernel_->store(rows, workspace);
}

template <class T>
Partial<T> CpuEngine<T>::to_partial() const {
  return {state_.o.clone(), state_.m.clone(), state_.l.clone()};
}

template <class T>
AttentionResult<T> CpuEngine<T>::finish() {
  workspace_ = {};
  add_sinks(state_, scoring_.sinks);
  return ring_attention::finish(std::move(state_));
}

template class CpuEngine<float>;
template class CpuEngine<double>;

}  // namespace ring_attention
