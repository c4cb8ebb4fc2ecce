/// \file
/// `SameBitsEngine`: a forward whose bits do not depend on how many ranks and threads compute it.
///
/// The sums over keys, and those over queries in dK and dV (backward.hpp), are cut at fixed positions (tiling.hpp). A pair of
/// tiles is computed as usual, so it has the same bits on every rank, and the tiles are added as exact sums (sum.hpp), in any
/// order. The fast engines differ between instruction sets: the forward and dQ are the same with AVX2 and AVX-512, without a
/// fused multiply-add they are not, and dK, dV depend on the lanes.
#pragma once

#include "ring_attention/attention/exact/state.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/cpu/engine.hpp"

namespace ring_attention {

/// begin(q), then accumulate(kv) once per piece of keys in any number and order, then finish().
///
/// Every range of keys begins with a tile of the sequence, and ends with one or with the sequence. Those of queries need not: a
/// row does not depend on the other rows.
/// Memory: the state, 8 (value_dim + 3) bytes a query, 16 (value_dim + 2) beyond 1023 tiles of keys; and a tile a thread.
class SameBitsEngine : public Engine<float> {
 public:
  /// \param options  same_bits is the tile
  /// \throws InputError when the tile has no token
  SameBitsEngine(Scoring scoring, const CpuOptions& options);

  /// See CpuEngine. \throws InputError when a range does not begin with a tile
  void begin(View<const float> q, const TokenRanges& ranges, View<const float> bias = {},
             std::optional<Index> value_dim = {});
  void accumulate(const KeyValue<float>& kv, const Progress& progress = {}) override;
  [[nodiscard]] AttentionResult<float> finish() override { return state_.finish(scoring_.sinks); }

  /// The state, in place of finish(): without the sinks.
  [[nodiscard]] ExactPartial take_state() { return std::move(state_); }

 private:
  /// One head of a tile of queries, and all keys of a piece.
  struct Task {
    Index batch, head, kv_head;
    TokenTile queries;
    int worker;
  };
  [[nodiscard]] cpu::HeadWidths widths() const {
    return {static_cast<int>(q_.shape().dim), static_cast<int>(state_.o.format().dim)};
  }
  void attend(const Task& task, const KeyValue<float>& kv, const std::vector<TokenTile>& keys);

  Scoring scoring_;
  CpuOptions options_;
  Tiling key_tiling_;
  const cpu::ForwardKernel<float>* kernel_ = nullptr;  // of these queries
  View<const float> q_, bias_;
  cpu::QueryIntervals intervals_;
  std::vector<TokenTile> queries_;
  Index key_tiles_ = 0;  // seen so far
  ExactPartial state_;
  Tensor<float> workspace_;  // [1, 1, threads, elements of a tile]
};

}  // namespace ring_attention
