/// \file
/// `ReadableDevice`: the cores of this machine, with the readable engines.
#pragma once

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/parallel/cpu_device.hpp"

namespace ring_attention {

/// A CpuDevice of readable engines, also with the same bits on any number of ranks.
template <class Input, class T = Input>
class ReadableDevice : public CpuDevice<Input, T> {
  using Fast = CpuDevice<Input, T>;

 public:
  /// \param block  tokens in a tile of the readable engines; 0: the fast ones
  /// \throws InputError for options.same_bits in double
  ReadableDevice(const CpuOptions& options, Index block) : Fast(options, block) {}

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const Input> q,
                                                   const TokenRanges& ranges, const Terms<Input>& terms,
                                                   const ExpectedKeys& keys) const override {
    if (!is_readable()) return Fast::forward(scoring, q, ranges, terms, keys);
    return this->begun(std::make_unique<BlockwiseEngine<Input>>(scoring, this->block_), q, ranges, terms,
                       keys);
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<T>> backward(const Scoring& scoring,
                                                            const BackwardInputs<Input>& inputs,
                                                            const TokenRanges& ranges,
                                                            const ExpectedKeys& keys) const override {
    if (!is_readable()) return Fast::backward(scoring, inputs, ranges, keys);
    return this->begun(std::make_unique<BlockwiseBackward<Input>>(scoring, this->block_), inputs, ranges,
                       keys);
  }

 private:
  /// CpuDevice makes the readable engines of the same bits.
  [[nodiscard]] bool is_readable() const { return this->block_ > 0 && this->options_.same_bits == 0; }
};

}  // namespace ring_attention
