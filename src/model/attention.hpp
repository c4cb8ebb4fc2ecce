/// \file
/// `Attention`: the attention of a layer, and its kinds: one device, and the partitions of the library.
///
/// A layer does not know which it has.
#pragma once

#include <memory>
#include <utility>

#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/cpu_device.hpp"

namespace ring_attention::model {

/// q `[batch, heads, tokens, dim]` and k, v `[batch, kv_heads, tokens, dim]` are those of this rank's tokens; so are the
/// results. `forward` gives out and lse; `backward` takes them back with dO, and gives dQ, dK, dV. Collective over the
/// ranks that share the sequences.
template <class T>
class Attention {
 public:
  virtual ~Attention() = default;
  [[nodiscard]] virtual AttentionResult<T> forward(View<const T> q, View<const T> k, View<const T> v,
                                                   const Scoring& scoring) = 0;
  [[nodiscard]] virtual Gradients<T> backward(const BackwardInputs<T>& inputs, View<const T> k,
                                              View<const T> v, const Scoring& scoring) = 0;
};

/// All tokens are here.
template <class T>
class OneDevice : public Attention<T> {
 public:
  explicit OneDevice(const CpuOptions& options = {}) : options_(options) {}

  [[nodiscard]] AttentionResult<T> forward(View<const T> q, View<const T> k, View<const T> v,
                                           const Scoring& scoring) override {
    return attention_forward<T>(q, k, v, scoring, options_);
  }
  [[nodiscard]] Gradients<T> backward(const BackwardInputs<T>& inputs, View<const T> k, View<const T> v,
                                      const Scoring& scoring) override {
    return attention_backward<T>(inputs, k, v, scoring, options_);
  }

 private:
  CpuOptions options_;
};

/// Some tokens of each sequence are here: Ulysses over the heads, and a ring or an all-gather over the shards.
template <class T>
class SharedContext : public Attention<T> {
 public:
  /// \param gathers  an all-gather over the ranks of the ring; no ranks share heads then
  /// \param shards   over the ranks of the ring
  SharedContext(std::shared_ptr<Links> links, bool gathers, const RankGrid& grid, const Placement& shards,
                const CpuOptions& options)
      : links_(std::move(links)), device_(options), gathers_(gathers), grid_(grid), shards_(shards) {}

  [[nodiscard]] AttentionResult<T> forward(View<const T> q, View<const T> k, View<const T> v,
                                           const Scoring& scoring) override {
    return attention(q, k, scoring).forward(q, k, v);
  }
  [[nodiscard]] Gradients<T> backward(const BackwardInputs<T>& inputs, View<const T> k, View<const T> v,
                                      const Scoring& scoring) override {
    return attention(inputs.q, k, scoring).backward(inputs, k, v);
  }

 private:
  [[nodiscard]] ContextParallel<T> attention(View<const T> q, View<const T> k, const Scoring& scoring) {
    return {device_, *links_, {grid_, gathers_, shards_, q.shape(), k.shape(), scoring}};
  }

  std::shared_ptr<Links> links_;
  CpuDevice<T> device_;
  bool gathers_;
  RankGrid grid_;
  Placement shards_;
};

}  // namespace ring_attention::model
