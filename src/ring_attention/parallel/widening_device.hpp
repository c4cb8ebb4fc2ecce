/// \file
/// `WideningDevice`: a device of float for which K,V travel as bf16.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>

#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/device.hpp"

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

/// Its engines are those of another device of the host, with K,V widened once a step.
class WideningDevice : public Device<float, Bf16> {
 public:
  explicit WideningDevice(std::unique_ptr<const Device<float>> device) : device_(std::move(device)) {}

  [[nodiscard]] const Memory& memory() const override { return device_->memory(); }

  [[nodiscard]] std::unique_ptr<Engine<Bf16>> forward(const Scoring& scoring, View<const float> q,
                                                      const TokenRanges& ranges, View<const float> bias,
                                                      const ExpectedKeys& keys) const override {
    return std::make_unique<WideningEngine>(device_->forward(scoring, q, ranges, bias, keys), keys.largest);
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<Bf16>> backward(const Scoring& scoring,
                                                               const BackwardInputs<float>& inputs,
                                                               const TokenRanges& ranges,
                                                               const ExpectedKeys& keys) const override {
    return std::make_unique<WideningBackward>(device_->backward(scoring, inputs, ranges, keys), keys.largest);
  }
  [[nodiscard]] GradientAccumulator gradient_accumulator(Index dim, Index terms) const override {
    return device_->gradient_accumulator(dim, terms);
  }

  void stage_kv(View<Bf16> shard, View<const float> array) const override {
    std::ranges::transform(array.elements(), shard.data(), [](float x) { return Bf16(x); });
  }
  void stage_kv_with(View<Bf16> shard, const std::function<void(View<float>)>& write) const override {
    Tensor<float> exact(shard.shape());
    write(exact);
    stage_kv(shard, exact);
  }
  [[nodiscard]] MaybeOwned<float> to_device(View<const float> host) const override {
    return device_->to_device(host);
  }
  [[nodiscard]] MaybeOwned<float> values_to_device(View<const float> host) const override {
    return device_->values_to_device(host);
  }
  [[nodiscard]] Tensor<float> to_host(MaybeOwned<float>&& array) const override {
    return device_->to_host(std::move(array));
  }

 private:
  std::unique_ptr<const Device<float>> device_;
};

}  // namespace ring_attention
