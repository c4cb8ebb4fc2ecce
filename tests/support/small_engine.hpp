// An engine of its own for mistakes inside a tile: the online softmax over tiles of keys, with the steps that can be wrong as
// rules. With the right rules it agrees with the reference.
#pragma once

#include "ring_attention/attention/sink.hpp"
#include "ring_attention/attention/tile.hpp"

namespace ring_attention::test {

struct RightRules {
  /// A sum that holds no term has maximum -inf.
  template <class T>
  static constexpr T initial_max = negative_infinity<T>;

  template <class T>
  static T rescale(T from, T to) {
    return ring_attention::rescale(from, to);
  }
  template <class T>
  static void merge_row(SoftmaxState<T>& state, std::span<T> o, const SoftmaxState<T>& state_b,
                        std::span<const T> o_b) {
    ring_attention::merge_row(state, o, state_b, o_b);
  }
  /// `group` contiguous query heads share one KV head.
  static Index kv_head(Index head, Index group) { return head / group; }
};

template <class T, class Rules>
class SmallEngine : public Engine<T> {
 public:
  SmallEngine(const Scoring& scoring, Index block) : scoring_(scoring), block_(block) {}

  void begin(View<const T> q, TokenRanges ranges, View<const T> bias = {}) {
    q_ = q;
    bias_ = bias;
    ranges_ = std::move(ranges);
    state_ = Partial<T>::empty(q.shape());
    state_.m.fill(Rules::template initial_max<T>);
  }
  void accumulate(const KeyValue<T>& kv, const Progress& progress = {}) override {
    const Index group = require_attention_shapes(q_.shape(), kv.k.shape(), kv.v.shape());
    for_each_tile(q_.shape(), ranges_, kv.ranges, block_, group, [&](Tile tile) {
      tile.kv_head = Rules::kv_head(tile.head, group);
      if (score_tile(scoring_, tile, q_, kv.k, bias_, s_)) merge_tile(tile, kv.v);
      if (progress) progress();
    });
  }
  [[nodiscard]] AttentionResult<T> finish() override {
    add_sinks(state_, scoring_.sinks);
    return ring_attention::finish(std::move(state_));
  }

 private:
  void merge_tile(const Tile& tile, const View<const T>& v) {
    for (Index i = 0; i < s_.rows(); ++i) {
      SoftmaxState<T> added{s_.row(i).maxCoeff(), 0};
      for (Index j = 0; j < s_.cols(); ++j) {
        s_(i, j) = Rules::rescale(s_(i, j), added.m);
        added.l += s_(i, j);
      }
      const Matrix<T> o = s_.row(i) * tile.of_keys(v);
      const Index row = tile.first_query + i;
      T& m = state_.m.view()(tile.batch, tile.head, row);
      T& l = state_.l.view()(tile.batch, tile.head, row);
      SoftmaxState<T> merged{m, l};
      Rules::merge_row(merged, state_.o.view().row(tile.batch, tile.head, row), added,
                       std::span<const T>(o.data(), static_cast<std::size_t>(o.size())));
      m = merged.m;
      l = merged.l;
    }
  }

  Scoring scoring_;
  Index block_;
  View<const T> q_, bias_;
  TokenRanges ranges_;
  Partial<T> state_;
  Matrix<T> s_;  // of a tile
};

}  // namespace ring_attention::test
