/// \file
/// `Attention`: the attention of a layer, and its kinds: one device, and the partitions of the library.
///
/// A layer does not know which it has.
#pragma once

#include <memory>
#include <utility>

#include "ring_attention/cpu/attention_backward.hpp"
#include "ring_attention/parallel/cpu_devices.hpp"
#include "ring_attention/parallel/observed.hpp"

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
  /// \param shards  over the ranks of the ring
  SharedContext(std::shared_ptr<Links> links, const Division& division, const RankGrid& grid,
                const Placement& shards, const CpuOptions& options, Observers observers = {})
      : links_(std::move(links)),
        device_(make_cpu_device<T>(options)),
        division_(division),
        grid_(grid),
        shards_(shards),
        observers_(std::move(observers)) {}

  [[nodiscard]] AttentionResult<T> forward(View<const T> q, View<const T> k, View<const T> v,
                                           const Scoring& scoring) override {
    return part("attention, forward", q, k, scoring,
                [&](ContextParallel<T>& attention) { return attention.forward(q, k, v); });
  }
  [[nodiscard]] Gradients<T> backward(const BackwardInputs<T>& inputs, View<const T> k, View<const T> v,
                                      const Scoring& scoring) override {
    return part("attention, backward", inputs.q, k, scoring,
                [&](ContextParallel<T>& attention) { return attention.backward(inputs, k, v); });
  }

 private:
  auto part(const char* name, View<const T> q, View<const T> k, const Scoring& scoring, const auto& compute) {
    const Index seq = shards_.seq();
    ObservedContextParallel<T> attention(
        *device_, *links_,
        {grid_, division_, shards_, q.shape().with_seq(seq), k.shape().with_seq(seq), scoring}, observers_);
    tell(observers_, &Observer::begins, name);
    auto result = compute(attention);
    tell(observers_, &Observer::ends);
    return result;
  }

  std::shared_ptr<Links> links_;
  std::unique_ptr<Device<T>> device_;
  Division division_;
  RankGrid grid_;
  Placement shards_;
  Observers observers_;
};

}  // namespace ring_attention::model
