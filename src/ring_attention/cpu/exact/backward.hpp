/// \file
/// `SameBitsBackward`: a backward whose bits do not depend on how many ranks and threads compute it (forward.hpp).
#pragma once

#include <span>

#include "ring_attention/attention/exact/state.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/cpu/backward.hpp"

namespace ring_attention {

/// begin(forward), then accumulate(kv, gradient) once per piece of keys, then finish() -> dQ.
///
/// Every range of queries and of keys begins with a tile. dK and dV are added to rows of exact sums: each of `gradient` is
/// `[batch, kv_heads, tokens, words]` (ExactFormat, wide or not). dQ of a pair of tiles is one term, and so are dK and dV for
/// each query head. dBias has one term for each pair of tokens and head; where it broadcasts, they are added in the order of
/// batch and head.
/// Memory: 8 (dim + 1) bytes a query for dQ, 16 dim + 8 beyond 1023 tiles of keys; and a tile of queries a thread.
class SameBitsBackward : public BackwardEngine<float> {
 public:
  /// \param options  same_bits is the tile
  /// \throws InputError when the tile has no token
  /// \param most_keys  that arrive at a time, where that is known: for the memory of a tile
  SameBitsBackward(Scoring scoring, const CpuOptions& options, Index most_keys = Mask::unlimited);

  /// See CpuBackward. \throws InputError when a range does not begin with a tile
  void begin(const BackwardInputs<float>& forward, const TokenRanges& ranges);
  void accumulate(const KeyValue<float>& kv, const KeyValueGradient<float>& gradient,
                  const Progress& progress = {}) override;
  [[nodiscard]] Tensor<float> finish() override { return grad_q_.values(); }
  [[nodiscard]] TermGradients<float> term_gradients() override { return {std::move(grad_bias_)}; }

 private:
  /// One head of a tile of queries, and some keys of a piece.
  struct Task {
    Index batch, head, kv_head;
    TokenTile queries;
    std::span<const TokenTile> keys;
    int worker;
  };
  struct Panels;
  [[nodiscard]] cpu::HeadWidths widths() const {
    return {static_cast<int>(forward_.q.shape().dim), static_cast<int>(forward_.out.shape().dim)};
  }
  void differentiate(const Task& task, const KeyValue<float>& kv, const KeyValueGradient<float>& gradient,
                     const Progress& progress);

  Scoring scoring_;
  CpuOptions options_;
  Index most_keys_;
  Tiling query_tiling_, key_tiling_;
  const cpu::Kernels<float>& kernels_;
  BackwardInputs<float> forward_;
  cpu::QueryIntervals intervals_;
  std::vector<TokenTile> queries_;
  Index key_tiles_ = 0;
  Tensor<float> delta_;  // [batch, heads, seq, 1]
  ExactRows grad_q_;
  Tensor<float> grad_bias_;
  Tensor<float> workspace_;
};

}  // namespace ring_attention
