#include "ring_attention/cpu/exact/forward.hpp"

#include <algorithm>

#include "ring_attention/cpu/exact/tiles.hpp"
#include "ring_attention/cpu/threads.hpp"

namespace ring_attention {

SameBitsEngine::SameBitsEngine(Scoring scoring, const CpuOptions& options)
    : scoring_(std::move(scoring)),
      options_(options),
      key_tiling_(options.same_bits, scoring_.mask.documents) {}

void SameBitsEngine::begin(View<const float> q, const TokenRanges& ranges, View<const float> bias,
                           std::optional<Index> value_dim) {
  require_queries(q.shape(), ranges, bias.shape());
  q_ = q;
  bias_ = bias;
  intervals_ = cpu::QueryIntervals(scoring_.mask, ranges);
  key_tiles_ = 0;
  state_ = ExactPartial::empty(q.shape().with_dim(value_dim.value_or(q.shape().dim)));
  queries_.clear();
  kernel_ =
      &forward_kernel(kernels<float>(options_.isa).exact_forward, static_cast<cpu::Size>(q.shape().seq));
  for (const cpu::QueryTile& tile : cpu::query_tiles(ranges, kernel_->lanes))
    queries_.push_back({tile.queries, tile.first});
  const auto words = static_cast<cpu::Size>(state_.o.format().words() + state_.l.format().words());
  workspace_ = cpu::workspaces<float>(
      options_.threads, kernel_->workspace(widths()) + static_cast<cpu::Size>(kernel_->lanes) * words);
}

void SameBitsEngine::accumulate(const KeyValue<float>& kv, const Progress& progress) {
  const Shape& q = q_.shape();
  const Index group = require_keys({q, q.with_dim(state_.o.format().dim), bias_.shape()}, kv);
  const std::vector<TokenTile> keys = tiles_of(kv.ranges, key_tiling_);
  key_tiles_ += std::ssize(keys) * intervals_.parts();        // an interval of a tile is a term
  if (key_tiles_ >= ExactFormat::most_terms) state_.widen();  // a sink is one more term

  // In CpuEngine's order: the heads of a group share K,V in the cache, and long rows come first.
  const auto tiles = std::ssize(queries_);
  for_each_task(q.batch * q.heads * tiles, options_.threads, [&](Index index, int worker) {
    const Index in_group = index % group, pair = index / group / tiles;
    const Index batch = pair / kv.k.shape().heads, kv_head = pair % kv.k.shape().heads;
    const TokenTile& queries = queries_[static_cast<std::size_t>(tiles - 1 - index / group % tiles)];
    const Task task{batch, kv_head * group + in_group, kv_head, queries, worker};
    attend(task, kv, keys);
    if (progress && worker == 0) progress();
  });
}

void SameBitsEngine::attend(const Task& task, const KeyValue<float>& kv, const std::vector<TokenTile>& keys) {
  const auto& [batch, head, kv_head, queries, worker] = task;
  float* const workspace = workspace_.view().row(0, 0, worker).data();
  float* const stored = workspace + kernel_->workspace(widths());
  const ExactFormat of_o{widths().v}, of_l{1};
  const cpu::QueryRows<float> rows{
      static_cast<int>(queries.tokens.count),    widths().k, widths().v, static_cast<float>(scoring_.scale),
      q_.row(batch, head, queries.first).data(), stored,     nullptr,    nullptr};
  Index terms = 0;
  const auto store = [&] {
    kernel_->store(rows, workspace);
    // NOLINTNEXTLINE(clang-analyzer-core.NullDereference): it loses a structured binding in a lambda
    merge_rows(state_.o, batch, head, queries, stored, of_o.words() + of_l.words());
    merge_rows(state_.l, batch, head, queries, stored + of_o.words(), of_o.words() + of_l.words());
    terms = 0;
  };
  cpu::Lanes<float> lanes;
  for (const TokenTile& tile : keys)
    for (int part = 0; part < intervals_.parts(); ++part) {
      if (!lanes.look(scoring_, intervals_, batch, head, {queries.tokens, queries.first}, part, tile.tokens,
                      kv.k.row(batch, kv_head, tile.first).data(),
                      kv.v.row(batch, kv_head, tile.first).data(), bias_))
        continue;
      if (terms++ == 0) kernel_->load(rows, workspace);
      kernel_->attend(lanes.span(), rows, workspace);
      if (terms == ExactFormat::terms_at_once) store();
    }
  if (terms > 0) store();
}

}  // namespace ring_attention
