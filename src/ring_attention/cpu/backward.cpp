#include "ring_attention/cpu/backward.hpp"

#include <algorithm>
#include <atomic>

#include "ring_attention/cpu/threads.hpp"

namespace ring_attention {

using cpu::QueryTile;

namespace {

constexpr Index part_keys = 256;  // of a task: enough to load a tile of queries for

void wait_for(const std::atomic<Index>& count, Index due) {
  for (Index now = count; now < due; now = count) count.wait(now);
}

/// Counts a task when it ends.
class Done {
 public:
  explicit Done(std::atomic<Index>& count) : count_(count) {}
  Done(const Done&) = delete;
  Done& operator=(const Done&) = delete;
  ~Done() {
    ++count_;
    count_.notify_all();
  }

 private:
  std::atomic<Index>& count_;
};

}  // namespace

template <class T>
CpuBackward<T>::CpuBackward(Scoring scoring, const CpuOptions& options)
    : scoring_(std::move(scoring)), threads_(options.threads), kernel_(kernels<T>(options.isa).backward) {}

template <class T>
void CpuBackward<T>::begin(const BackwardInputs<T>& forward, TokenRanges ranges) {
  forward.require_queries(ranges);
  const Shape& q = forward.q.shape();
  forward_ = forward;
  q_ranges_ = std::move(ranges);
  intervals_ = cpu::QueryIntervals(scoring_.mask, q_ranges_);
  const cpu::HeadWidths widths(static_cast<int>(q.dim), static_cast<int>(forward.out.shape().dim));
  tiles_ = cpu::query_tiles(q_ranges_, kernel_.tile(widths).queries);
  delta_ = row_dot(forward.grad_out, forward.out, forward.grad_lse);
  grad_q_ = Tensor<T>(q);
  grad_bias_ = Tensor<T>(forward.bias.shape());
  workspace_ = cpu::workspaces<T>(threads_, kernel_.workspace(widths));
}

template <class T>
std::vector<typename CpuBackward<T>::KeyRange> CpuBackward<T>::parts_of(const TokenRanges& ranges) {
  std::vector<KeyRange> parts;
  Index first = 0;
  for (const TokenRange& keys : ranges) {
    for (Index from = 0; from < keys.count; from += part_keys)
      parts.push_back({keys.slice(from, std::min(part_keys, keys.count - from)), first + from});
    first += keys.count;
  }
  return parts;
}

template <class T>
void CpuBackward<T>::accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                                const Progress& progress) {
  const Shape& q = forward_.q.shape();
  const Index group = require_keys(forward_.shapes(), kv, gradient);
  const Index kv_heads = kv.k.shape().heads, pairs = q.batch * kv_heads;

  const std::vector<KeyRange> parts = parts_of(kv.ranges);

  // A task is a tile of queries and a part of the keys. The tasks of a part come in the order of the tiles, because
  // they add to the same dK and dV, and the tasks of a tile in the order of the parts, because they add to the same dQ.
  // So the tasks on one diagonal are independent of each other, and so are pairs, unless a bias broadcasts: then all
  // pairs are one chain.
  const Shape& bias = grad_bias_.shape();
  const bool shares_bias = grad_bias_.size() > 0 && (bias.batch < q.batch || bias.heads < q.heads);
  const Index tiles = std::ssize(tiles_), rows_of_pair = group * tiles;
  const Index chains = shares_bias ? 1 : pairs, rows = shares_bias ? pairs * rows_of_pair : rows_of_pair;
  const Index columns = std::ssize(parts), longer = std::max(rows, columns),
              shorter = std::min(rows, columns);
  const Index tasks_of_chain = (longer + shorter - 1) * shorter;                     // some of them outside
  std::vector<std::atomic<Index>> done(static_cast<std::size_t>(chains * columns));  // rows of each part

  for_each_task(chains * tasks_of_chain, threads_, [&](Index task, int worker) {
    const Index chain = task / tasks_of_chain, diagonal = task % tasks_of_chain / shorter;
    const Index across = task % shorter, along = diagonal - across;
    if (along < 0 || along >= longer) return;
    const Index row = rows < columns ? across : along, part = rows < columns ? along : across;
    // Tasks begin in order: other threads have begun those that this one waits for.
    std::atomic<Index>& done_of_part = done[static_cast<std::size_t>(chain * columns + part)];
    wait_for(done_of_part, row);
    if (part > 0) wait_for(*(&done_of_part - 1), row + 1);
    const Done mark(done_of_part);  // also when it throws: others wait
    const Index pair = chain + row / rows_of_pair,
                head = pair % kv_heads * group + row % rows_of_pair / tiles;
    differentiate(kv, gradient, pair / kv_heads, head, pair % kv_heads,
                  tiles_[static_cast<std::size_t>(row % tiles)], parts[static_cast<std::size_t>(part)],
                  workspace_.view().row(0, 0, worker).data());
    if (progress && worker == 0) progress();
  });
}

template <class T>
void CpuBackward<T>::differentiate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient, Index batch,
                                   Index head, Index kv_head, const QueryTile& tile, const KeyRange& part,
                                   T* workspace) {
  const auto at = [&](const auto& array) { return array.row(batch, kv_head, part.first).data(); };
  const cpu::GradientRows<T> rows{static_cast<int>(tile.queries.count),
                                  static_cast<int>(forward_.q.shape().dim),
                                  static_cast<int>(forward_.out.shape().dim),
                                  static_cast<T>(scoring_.scale),
                                  forward_.q.row(batch, head, tile.first).data(),
                                  forward_.grad_out.row(batch, head, tile.first).data(),
                                  &forward_.lse(batch, head, tile.first),
                                  &delta_.view()(batch, head, tile.first),
                                  grad_q_.view().row(batch, head, tile.first).data()};
  cpu::Lanes<T> lanes;
  bool loaded = false;
  for (int interval = 0; interval < intervals_.parts(); ++interval) {
    if (!lanes.look(scoring_, intervals_, batch, head, tile, interval, part.keys, at(kv.k), at(kv.v),
                    forward_.bias, grad_bias_.view()))
      continue;
    if (!std::exchange(loaded, true)) kernel_.load(rows, workspace);
    kernel_.attend(lanes.span(), rows, at(gradient.k), at(gradient.v), workspace);
  }
  if (loaded) kernel_.store(rows, workspace);
}

template <class T>
Tensor<T> CpuBackward<T>::finish() {
  workspace_ = {};
  return std::move(grad_q_);
}

template class CpuBackward<float>;
template class CpuBackward<double>;

}  // namespace ring_attention
