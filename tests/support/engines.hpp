// Functions that make engines which have begun, and a device of them: a test replaces an engine by a wrong one.
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
  std::function<void(const Gradient&)> work;
};

/// A device of any engines, for arrays of the host.
template <class T>
class DeviceOf : public CpuDevice<T> {
 public:
  explicit DeviceOf(MakeForward<T> forward, MakeBackward<T> backward = make_backward<T, CpuBackward<T>>,
                    Index block = 64)
      : forward_(std::move(forward)), backward_(std::move(backward)), block_(block) {}

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const T> q,
                                                   const TokenRanges& ranges, View<const T> bias,
                                                   const ExpectedKeys&) const override {
    return forward_(scoring, block_, q, ranges, bias);
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<T>> backward(const Scoring& scoring,
                                                            const BackwardInputs<T>& inputs,
                                                            const TokenRanges& ranges,
                                                            const ExpectedKeys&) const override {
    return backward_(scoring, block_, inputs, ranges);
  }

 private:
  MakeForward<T> forward_;
  MakeBackward<T> backward_;
  Index block_;
};
template <class T, class Forward = CpuEngine<T>, class Backward = CpuBackward<T>>
DeviceOf<T> device_of(Index block) {
  return DeviceOf<T>(make_forward<T, Forward>, make_backward<T, Backward>, block);
}

/// Elements of the one tile that the fast engine keeps.
template <class T>
Index tile_elements(cpu::Size (*elements)(cpu::HeadWidths), Index dim, std::optional<Index> value_dim = {}) {
  const cpu::HeadWidths widths(static_cast<int>(dim), static_cast<int>(value_dim.value_or(dim)));
  return cpu::workspaces<T>(1, elements(widths)).size();
}
/// The same of the forward on some queries.
template <class T>
Index forward_tile_elements(const Shape& q, std::optional<Index> value_dim = {}) {
  const auto& kernel = forward_kernel(kernels<T>(best_isa()).forward, static_cast<cpu::Size>(q.seq));
  return tile_elements<T>(kernel.workspace, q.dim, value_dim);
}

}  // namespace ring_attention::test
