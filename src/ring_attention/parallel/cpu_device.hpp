/// \file
/// `CpuDevice`: the cores of this machine.
#pragma once

#include <algorithm>
#include <type_traits>

#include "ring_attention/core/error.hpp"
#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/cpu/same_bits.hpp"
#include "ring_attention/parallel/device.hpp"
#include "ring_attention/ring/widening_engine.hpp"

namespace ring_attention {

/// The fast engines. Arrays are in the memory of the host.
/// \tparam Input  float or double  \tparam T  in which K,V travel: Input, or Bf16 for float
template <class Input, class T = Input>
class CpuDevice : public Device<Input, T> {
 public:
  /// \throws InputError for options.same_bits in double
  explicit CpuDevice(const CpuOptions& options = {}) : CpuDevice(options, 0) {}
  [[nodiscard]] const Memory& memory() const override { return host_memory(); }

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const Input> q,
                                                   const TokenRanges& ranges, const Terms<Input>& terms,
                                                   const ExpectedKeys& keys) const override {
    if constexpr (std::is_same_v<Input, float>)
      if (options_.same_bits > 0)
        return widened<WideningEngine>(
            same_bits_forward(scoring, options_, block_, q, ranges, terms, keys.largest.value_dim), keys);
    return begun(std::make_unique<CpuEngine<Input>>(scoring, options_), q, ranges, terms, keys);
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<T>> backward(const Scoring& scoring,
                                                            const BackwardInputs<Input>& inputs,
                                                            const TokenRanges& ranges,
                                                            const ExpectedKeys& keys) const override {
    if constexpr (std::is_same_v<Input, float>)
      if (options_.same_bits > 0)
        return widened<WideningBackward>(
            same_bits_backward(scoring, options_, block_, std::max<Index>(keys.largest.seq, 1), inputs,
                               ranges),
            keys);
    return begun(std::make_unique<CpuBackward<Input>>(scoring, options_), inputs, ranges, keys);
  }

  [[nodiscard]] GradientAccumulator gradient_accumulator(Index dim, Index terms) const override {
    return options_.same_bits > 0 ? same_bits_accumulator(dim, terms)
                                  : Device<Input, T>::gradient_accumulator(dim, terms);
  }

  void stage_kv(View<T> shard, View<const Input> array) const override {
    std::ranges::transform(array.elements(), shard.data(), [](Input x) { return T(x); });
  }
  void stage_kv_with(View<T> shard, const std::function<void(View<Input>)>& write) const override {
    if constexpr (is_narrow) {
      Tensor<Input> exact(shard.shape());
      write(exact);
      stage_kv(shard, exact);
    } else {
      write(shard);
    }
  }
  [[nodiscard]] MaybeOwned<Input> to_device(View<const Input> host) const override { return host; }
  [[nodiscard]] MaybeOwned<Input> values_to_device(View<const Input> host) const override { return host; }
  [[nodiscard]] Tensor<Input> to_host(MaybeOwned<Input>&& array) const override {
    return owned(host_memory(), std::move(array));
  }

 protected:
  /// \param block  tokens in a tile of the readable engine; 0: the fast one
  CpuDevice(const CpuOptions& options, Index block) : options_(options), block_(block) {
    if (options.same_bits > 0 && !std::is_same_v<Input, float>)
      throw InputError("the same bits on any number of ranks are possible in float32 only");
  }

  /// An engine that begins on these queries, as a ring uses it.
  [[nodiscard]] static std::unique_ptr<Engine<T>> begun(auto engine, View<const Input> q,
                                                        const TokenRanges& ranges, const Terms<Input>& terms,
                                                        const ExpectedKeys& keys) {
    engine->begin(q, ranges, terms, keys.largest.value_dim);
    return widened<WideningEngine>(std::unique_ptr<Engine<Input>>(std::move(engine)), keys);
  }
  [[nodiscard]] static std::unique_ptr<BackwardEngine<T>> begun(auto engine,
                                                                const BackwardInputs<Input>& inputs,
                                                                const TokenRanges& ranges,
                                                                const ExpectedKeys& keys) {
    engine->begin(inputs, ranges);
    return widened<WideningBackward>(std::unique_ptr<BackwardEngine<Input>>(std::move(engine)), keys);
  }

  CpuOptions options_;
  Index block_;

 private:
  static constexpr bool is_narrow = !std::is_same_v<T, Input>;

  /// The engine as a ring uses it.
  template <class Widening, class Exact>
  [[nodiscard]] static auto widened(std::unique_ptr<Exact> engine, const ExpectedKeys& keys) {
    if constexpr (is_narrow)
      return std::make_unique<Widening>(std::move(engine), keys.largest);
    else
      return engine;
  }
};

}  // namespace ring_attention
