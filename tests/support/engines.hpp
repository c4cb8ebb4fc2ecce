// Engines that only work, and the memory of the right ones.
#pragma once

#include <functional>
#include <memory>

#include "ring_attention/parallel/cpu_device.hpp"

namespace ring_attention::test {

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
