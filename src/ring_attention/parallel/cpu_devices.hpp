/// \file
/// `ReadableDevice`: the cores of this machine, with the readable engines; `make_cpu_device`: the device that options ask for.
#pragma once

#include <memory>
#include <type_traits>

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/parallel/same_bits_device.hpp"
#include "ring_attention/parallel/widening_device.hpp"

namespace ring_attention {

/// A CpuDevice of readable engines.
template <class T>
class ReadableDevice : public CpuDevice<T> {
  using Fast = CpuDevice<T>;

 public:
  /// \param block  tokens in a tile of the readable engines; 0: the fast ones
  ReadableDevice(const CpuOptions& options, Index block) : Fast(options), block_(block) {}

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const T> q,
                                                   const TokenRanges& ranges, View<const T> bias,
                                                   const ExpectedKeys& keys) const override {
    if (block_ == 0) return Fast::forward(scoring, q, ranges, bias, keys);
    return Fast::begun(std::make_unique<BlockwiseEngine<T>>(scoring, block_), q, ranges, bias, keys);
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<T>> backward(const Scoring& scoring,
                                                            const BackwardInputs<T>& inputs,
                                                            const TokenRanges& ranges,
                                                            const ExpectedKeys& keys) const override {
    if (block_ == 0) return Fast::backward(scoring, inputs, ranges, keys);
    return Fast::begun(std::make_unique<BlockwiseBackward<T>>(scoring, block_), inputs, ranges);
  }

 private:
  Index block_;
};

/// \tparam Input  float or double  \tparam T  in which K,V travel: Input, or Bf16 for float
/// \param block  tokens in a tile of the readable engines; 0: the fast ones
/// \throws InputError for options.same_bits in double, or with the readable engines
template <class Input, class T = Input>
[[nodiscard]] std::unique_ptr<Device<Input, T>> make_cpu_device(const CpuOptions& options, Index block = 0) {
  if constexpr (!std::is_same_v<Input, T>) {
    return std::make_unique<WideningDevice>(make_cpu_device<Input>(options, block));
  } else if (options.same_bits > 0) {
    if (block > 0) throw InputError("the readable engines have no exact sums");
    if constexpr (std::is_same_v<Input, float>)
      return std::make_unique<SameBitsDevice>(options);
    else
      throw InputError("the same bits on any number of ranks are possible in float32 only");
  } else {
    return std::make_unique<ReadableDevice<Input>>(options, block);
  }
}

}  // namespace ring_attention
