/// \file
/// `WideningEngine` and `WideningBackward`: K,V travel in a narrower type than the arithmetic.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

/// K,V of type bf16 as float, widened once a step for an engine that computes in float.
///
/// K and V are rounded once, before the first step, on the rank that owns them; that rank also computes with the
/// rounded values. So the result does not depend on the number of ranks. Gradients stay float.
/// Memory beside the engine's: K and V of one shard in float. With bf16 the parcels have half the size, and together
/// with that shard they need the memory of float parcels.
class Widening {
 public:
  /// \param shard  shape of the largest K,V that arrive
  explicit Widening(const KvShape& shard) : k_(shard), v_(shard.values()) {}

  [[nodiscard]] KeyValue<float> operator()(const KeyValue<Bf16>& kv) {
    return {widened(kv.k, k_), widened(kv.v, v_), kv.ranges};
  }

 private:
  [[nodiscard]] static View<const float> widened(const View<const Bf16>& from, Tensor<float>& to) {
    require(from.size() <= to.size(), "Widening: more keys than the largest shard");
    std::ranges::transform(from.elements(), to.data(), [](Bf16 x) { return static_cast<float>(x); });
    return {to.data(), from.shape()};
  }

  Tensor<float> k_, v_;
};

class WideningEngine : public Engine<Bf16> {
 public:
  WideningEngine(std::unique_ptr<Engine<float>> engine, const KvShape& shard)
      : engine_(std::move(engine)), widened_(shard) {}

  void accumulate(const KeyValue<Bf16>& kv, const Progress& progress = {}) override {
    engine_->accumulate(widened_(kv), progress);
  }
  [[nodiscard]] AttentionResult<float> finish() override { return engine_->finish(); }

 private:
  std::unique_ptr<Engine<float>> engine_;
  Widening widened_;
};

class WideningBackward : public BackwardEngine<Bf16> {
 public:
  WideningBackward(std::unique_ptr<BackwardEngine<float>> engine, const KvShape& shard)
      : engine_(std::move(engine)), widened_(shard) {}

  void accumulate(const KeyValue<Bf16>& kv, const KeyValueGradient<float>& gradient,
                  const Progress& progress = {}) override {
    engine_->accumulate(widened_(kv), gradient, progress);
  }
  [[nodiscard]] Tensor<float> finish() override { return engine_->finish(); }
  [[nodiscard]] TermGradients<float> term_gradients() override { return engine_->term_gradients(); }

 private:
  std::unique_ptr<BackwardEngine<float>> engine_;
  Widening widened_;
};

}  // namespace ring_attention
