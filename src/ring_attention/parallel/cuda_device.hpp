/// \file
/// `CudaDevice`: one GPU.
#pragma once

#include <utility>

#include "ring_attention/cuda/engine.hpp"
#include "ring_attention/cuda/stream.hpp"
#include "ring_attention/parallel/device.hpp"

namespace ring_attention {

/// q, k, v and dO have the type T on the GPU; sums and results are fp32. Everything is enqueued on one stream. The host waits
/// where ContextParallel asks for it, unless arrays are freed in the order of the stream (CudaOptions::allocator).
/// \tparam T  float, Bf16 or Fp16
template <class T>
class CudaDevice : public Device<T> {
 public:
  /// Calls alive() while the host waits: the GPU gives no sign of life.
  CudaDevice(CudaOptions forward, CudaOptions backward, std::function<void()> alive = {})
      : forward_(std::move(forward)),
        backward_(std::move(backward)),
        alive_(std::move(alive)),
        memory_(forward_.stream, forward_.allocator) {}

  [[nodiscard]] const Memory& memory() const override { return memory_; }

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const T> q,
                                                   const TokenRanges& ranges, View<const float> bias,
                                                   const ExpectedKeys& keys) const override {
    cuda::require_equal_widths(q.shape(), keys.largest.values());
    CudaOptions options = forward_;
    options.pieces = keys.pieces;
    auto engine = std::make_unique<CudaEngine<T>>(scoring, std::move(options));
    engine->begin(q, ranges, bias);
    return engine;
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<T>> backward(const Scoring& scoring,
                                                            const BackwardInputs<T>& inputs,
                                                            const TokenRanges& ranges,
                                                            const ExpectedKeys&) const override {
    auto engine = std::make_unique<CudaBackward<T>>(scoring, backward_);
    engine->begin(inputs, ranges);
    return engine;
  }

  void stage_kv(View<T> shard, View<const T> array) const override {
    memory_.copy(shard.elements(), array.elements());
  }
  void synchronize() const override {
    if (&forward_.allocator == &cuda::device_allocator()) cuda::synchronize(forward_.stream, alive_);
  }

  [[nodiscard]] MaybeOwned<T> to_device(View<const float> host) const override {
    return cuda::uploaded<T>(host, forward_.stream);
  }
  [[nodiscard]] MaybeOwned<float> values_to_device(View<const float> host) const override {
    return cuda::uploaded<float>(host, forward_.stream);
  }
  [[nodiscard]] Tensor<float> to_host(MaybeOwned<float>&& array) const override {
    return cuda::downloaded<float>(array.view(), forward_.stream);
  }
  void stage_kv_with(View<T> shard, const std::function<void(View<float>)>& write) const override {
    Tensor<float> host(shard.shape());
    write(host);
    cuda::upload<T>(shard, host, forward_.stream);
  }

 private:
  CudaOptions forward_, backward_;
  std::function<void()> alive_;
  cuda::DeviceMemory memory_;
};

}  // namespace ring_attention
