/// \file
/// `CpuDevice`: the cores of this machine.
#pragma once

#include <algorithm>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/parallel/device.hpp"

namespace ring_attention {

/// The fast engines. Arrays are in the memory of the host.
/// \tparam T  float or double
template <class T>
class CpuDevice : public Device<T> {
 public:
  /// \param options  no same_bits: see SameBitsDevice
  explicit CpuDevice(const CpuOptions& options = {}) : options_(options) {
    require(options.same_bits == 0, "CpuDevice: a SameBitsDevice has the same bits on any number of ranks");
  }
  [[nodiscard]] const Memory& memory() const override { return host_memory(); }
  [[nodiscard]] int threads() const override { return options_.threads; }
  void check(const SharedAttention&, bool) const override {
    if (options_.threads < 1) throw InputError("a rank has at least 1 thread");
    if (std::ranges::count(available_isas(), options_.isa) == 0)
      throw InputError("the instruction set is not available on this machine");
  }

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const T> q,
                                                   const TokenRanges& ranges, View<const T> bias,
                                                   const ExpectedKeys& keys) const override {
    return begun(std::make_unique<CpuEngine<T>>(scoring, options_), q, ranges, bias, keys);
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<T>> backward(const Scoring& scoring,
                                                            const BackwardInputs<T>& inputs,
                                                            const TokenRanges& ranges,
                                                            const ExpectedKeys&) const override {
    return begun(std::make_unique<CpuBackward<T>>(scoring, options_), inputs, ranges);
  }

  void stage_kv(View<T> shard, View<const T> array) const override {
    std::ranges::copy(array.elements(), shard.data());
  }
  void stage_kv_with(View<T> shard, const std::function<void(View<T>)>& write) const override {
    write(shard);
  }
  [[nodiscard]] MaybeOwned<T> to_device(View<const T> host) const override { return host; }
  [[nodiscard]] MaybeOwned<T> values_to_device(View<const T> host) const override { return host; }
  [[nodiscard]] Tensor<T> to_host(MaybeOwned<T>&& array) const override {
    return owned(host_memory(), std::move(array));
  }

 protected:
  /// An engine that begins on these queries.
  template <class E>
  [[nodiscard]] static std::unique_ptr<Engine<T>> begun(std::unique_ptr<E> engine, View<const T> q,
                                                        const TokenRanges& ranges, View<const T> bias,
                                                        const ExpectedKeys& keys) {
    engine->begin(q, ranges, bias, keys.largest.value_dim);
    return engine;
  }
  template <class E>
  [[nodiscard]] static std::unique_ptr<BackwardEngine<T>> begun(std::unique_ptr<E> engine,
                                                                const BackwardInputs<T>& inputs,
                                                                const TokenRanges& ranges) {
    engine->begin(inputs, ranges);
    return engine;
  }

  CpuOptions options_;
};

}  // namespace ring_attention
