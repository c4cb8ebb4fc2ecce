/// \file
/// `SameBitsDevice`: the cores of this machine, with the same bits on any number of ranks.
#pragma once

#include <algorithm>
#include <memory>
#include <string>

#include "ring_attention/cpu/exact/backward.hpp"
#include "ring_attention/cpu/exact/forward.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/term_gradients.hpp"

namespace ring_attention {

/// The engines whose sums are exact (cpu/exact).
class SameBitsDevice : public CpuDevice<float> {
 public:
  /// \param options  same_bits is the tile
  explicit SameBitsDevice(const CpuOptions& options) : CpuDevice<float>({options.threads, options.isa}) {
    options_.same_bits = options.same_bits;
  }

  [[nodiscard]] std::string name() const override {
    return "the same bits in tiles of " + std::to_string(options_.same_bits);
  }
  void check(const SharedAttention& shared, bool backward) const override {
    CpuDevice<float>::check(shared, backward);
    if (backward) require_exact_bias_gradient(shared.bias, shared.q, shared.grid);
    const Index tile = options_.same_bits;
    const Mask& mask = shared.scoring.mask;
    (void)tiles_of(shared.grid.shard(shared.tokens.queries), Tiling(tile, mask.documents, mask.offset));
    (void)tiles_of(shared.grid.shard(shared.tokens.keys), Tiling(tile, mask.documents));
  }
  [[nodiscard]] bool is_exact() const override { return true; }

  [[nodiscard]] std::unique_ptr<Engine<float>> forward(const Scoring& scoring, View<const float> q,
                                                       const TokenRanges& ranges, View<const float> bias,
                                                       const ExpectedKeys& keys) const override {
    return begun(std::make_unique<SameBitsEngine>(scoring, options_), q, ranges, bias, keys);
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<float>> backward(const Scoring& scoring,
                                                                const BackwardInputs<float>& inputs,
                                                                const TokenRanges& ranges,
                                                                const ExpectedKeys& keys) const override {
    const Index most_keys = std::max<Index>(keys.largest.seq, 1);
    return begun(std::make_unique<SameBitsBackward>(scoring, options_, most_keys), inputs, ranges);
  }
  [[nodiscard]] GradientAccumulator gradient_accumulator(Index dim, Index terms) const override {
    const ExactFormat format = ExactFormat::of(dim, terms);
    return {std::make_shared<ExactMemory>(format), format.words(),
            [format](View<const float> rows) { return exact_values(format, rows); }};
  }
};

}  // namespace ring_attention
