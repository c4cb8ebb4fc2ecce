// Functions that make engines which have begun, and a device of them: a test replaces one engine by a wrong one.
#pragma once

#include <functional>
#include <memory>

#include "ring_attention/parallel/cpu_device.hpp"

namespace ring_attention::test {

/// \param block  tokens of a tile, where the engine has tiles of any size
template <class T>
using MakeForward = std::function<std::unique_ptr<Engine<T>>(
    const Scoring& scoring, Index block, View<const T> q, const TokenRanges& ranges, View<const T> bias)>;
template <class T>
using MakeBackward = std::function<std::unique_ptr<BackwardEngine<T>>(
    const Scoring& scoring, Index block, const BackwardInputs<T>& inputs, const TokenRanges& ranges)>;

/// An engine of type E.
template <class T, class E>
std::unique_ptr<Engine<T>> make_forward(const Scoring& scoring, Index block, View<const T> q,
                                        const TokenRanges& ranges, View<const T> bias) {
  std::unique_ptr<E> engine(new E(make_engine<E>(scoring, block)));
  if constexpr (requires { engine->begin(q, ranges, bias); })
    engine->begin(q, ranges, bias);
  else
    engine->begin(q, ranges);
  return engine;
}
template <class T, class E>
std::unique_ptr<BackwardEngine<T>> make_backward(const Scoring& scoring, Index block,
                                                 const BackwardInputs<T>& inputs, const TokenRanges& ranges) {
  std::unique_ptr<E> engine(new E(make_engine<E>(scoring, block)));
  engine->begin(inputs, ranges);
  return engine;
}

/// A forward engine and a backward engine.
template <class T>
struct Engines {
  MakeForward<T> forward;
  MakeBackward<T> backward;
};
template <class T>
inline const Engines<T> fast_engines{make_forward<T, CpuEngine<T>>, make_backward<T, CpuBackward<T>>};
template <class T>
inline const Engines<T> readable_engines{make_forward<T, BlockwiseEngine<T>>,
                                         make_backward<T, BlockwiseBackward<T>>};

/// Engines that do `work` for every piece, and have no result.
struct WorkingEngine : Engine<float> {
  explicit WorkingEngine(std::function<void()> at_each_piece) : work(std::move(at_each_piece)) {}
  void accumulate(const KeyValue<float>&, const Progress& = {}) override { work(); }
  [[nodiscard]] AttentionResult<float> finish() override { return {}; }
  std::function<void()> work;
};
struct WorkingBackward : BackwardEngine<float> {
  using Gradient = KeyValueGradient<float>;
  explicit WorkingBackward(std::function<void(const Gradient&)> at_each_piece)
      : work(std::move(at_each_piece)) {}
  void accumulate(const KeyValue<float>&, const Gradient& gradient, const Progress& = {}) override {
    work(gradient);
  }
  [[nodiscard]] Tensor<float> finish() override { return {}; }
  [[nodiscard]] Tensor<float> bias_gradient() override { return {}; }
  std::function<void(const Gradient&)> work;
};

/// What a ContextParallel computes with.
template <class T>
class DeviceOf : public CpuDevice<T> {
 public:
  DeviceOf(const Engines<T>& engines, Index block) : engines_(engines), block_(block) {}

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const T> q,
                                                   const TokenRanges& ranges, View<const T> bias,
                                                   const ExpectedKeys&) const override {
    return engines_.forward(scoring, block_, q, ranges, bias);
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<T>> backward(const Scoring& scoring,
                                                            const BackwardInputs<T>& inputs,
                                                            const TokenRanges& ranges,
                                                            const ExpectedKeys&) const override {
    return engines_.backward(scoring, block_, inputs, ranges);
  }

 private:
  const Engines<T>& engines_;
  Index block_;
};

}  // namespace ring_attention::test
