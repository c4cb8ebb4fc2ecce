/// \file
/// `Device`: what computes a rank's part of an attention: the cores of a host, or a GPU.
#pragma once

#include <functional>
#include <memory>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/attention/gradient_accumulator.hpp"
#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/core/maybe_owned.hpp"

namespace ring_attention {

struct SharedAttention;

/// What an engine is told of the keys before they arrive.
struct ExpectedKeys {
  KvShape largest;  ///< of one piece, `[batch, kv_heads, tokens, dim]`; its value_dim is that of all pieces
  int pieces = 0;   ///< how many there are; 0: not known
};

/// Makes engines for arrays of type Input in its memory. K,V travel as T; sums and results are SumOf<Input>.
template <class Input, class T = Input>
class Device {
 public:
  using Value = SumOf<Input>;

  virtual ~Device() = default;

  [[nodiscard]] virtual const Memory& memory() const = 0;
  /// The name of its kernels: the same on all ranks.
  [[nodiscard]] virtual std::string name() const { return "the library's kernels"; }
  /// How many threads compute.
  [[nodiscard]] virtual int threads() const { return 1; }
  /// \throws InputError when it cannot compute this attention
  virtual void check(const SharedAttention&, bool /*backward*/) const {}
  /// Are sums exact, so that their bits do not depend on the ranks?
  [[nodiscard]] virtual bool is_exact() const { return false; }
  /// An engine that has begun on these queries. All arrays stay with the caller.
  [[nodiscard]] virtual std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const Input> q,
                                                           const TokenRanges& ranges, View<const Value> bias,
                                                           const ExpectedKeys& keys) const = 0;
  [[nodiscard]] virtual std::unique_ptr<BackwardEngine<T>> backward(const Scoring& scoring,
                                                                    const BackwardInputs<Input>& inputs,
                                                                    const TokenRanges& ranges,
                                                                    const ExpectedKeys& keys) const = 0;
  /// \param terms  how many tiles of queries add to a row, over all ranks
  [[nodiscard]] virtual GradientAccumulator gradient_accumulator(Index dim,
                                                                 [[maybe_unused]] Index terms) const {
    return {{std::shared_ptr<void>(), &memory()}, dim};
  }
  /// Writes K or V to where messages take it, rounded to T.
  virtual void stage_kv(View<T> shard, View<const Input> array) const = 0;
  /// Waits until everything is computed.
  virtual void synchronize() const {}

  /// An array of the host as the device computes with it, rounded to Input: the array itself, where nothing is to be done.
  [[nodiscard]] virtual MaybeOwned<Input> to_device(View<const Value> host) const = 0;
  [[nodiscard]] virtual MaybeOwned<Value> values_to_device(View<const Value> host) const = 0;
  /// And back. Waits until the array is computed.
  [[nodiscard]] virtual Tensor<Value> to_host(MaybeOwned<Value>&& array) const = 0;
  /// stage_kv() of an array that `write` writes into memory of the host, without a copy where K,V travel from there.
  virtual void stage_kv_with(View<T> shard, const std::function<void(View<Value>)>& write) const = 0;
};

}  // namespace ring_attention
