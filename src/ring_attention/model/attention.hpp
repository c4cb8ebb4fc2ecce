/// \file
/// `Attention`: the attention of a layer as two functions, and its kinds: one device, Ulysses with a ring, all-gather.
///
/// All kinds are the engines and partitions of the library. A layer does not know which it has.
#pragma once

#include <algorithm>
#include <functional>

#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/parallel/head_layout.hpp"
#include "ring_attention/parallel/line.hpp"
#include "ring_attention/parallel/travelling_kv.hpp"
#include "ring_attention/ring/kv_hops.hpp"

namespace ring_attention::model {

/// q `[batch, heads, tokens, dim]` and k, v `[batch, kv_heads, tokens, dim]` are those of this rank's tokens; so are the
/// results. `forward` gives out and lse; `backward` takes them back with dO, and gives dQ, dK, dV. Collective over the
/// ranks that share the sequences.
template <class T>
struct Attention {
  std::function<AttentionResult<T>(View<const T> q, View<const T> k, View<const T> v, const Scoring&)>
      forward;
  std::function<Gradients<T>(const ForwardResult<T>&, View<const T> k, View<const T> v, const Scoring&)>
      backward;
};

/// All tokens are here.
template <class T>
[[nodiscard]] Attention<T> one_device(const CpuOptions& options = {}) {
  return {[=](View<const T> q, View<const T> k, View<const T> v, const Scoring& scoring) {
            return attention_forward<T>(q, k, v, scoring, options);
          },
          [=](const ForwardResult<T>& forward, View<const T> k, View<const T> v, const Scoring& scoring) {
            return attention_backward<T>(forward, k, v, scoring, options);
          }};
}

/// Ulysses over the heads, and a ring or an all-gather over the shards: a ring of one is Ulysses alone, and U = 1 a ring or
/// an all-gather alone.
///
/// \tparam Links  makes the transports of the ring: transport(channel), as MpiMesh and LoopbackMesh do
template <class T, class Links>
class SharedAttention {
 public:
  /// \param ulysses  the line along place.ulysses
  /// \param context  the line of the ranks that share the sequences
  /// \param gathers  an all-gather over `context`, which has no axis of Ulysses then
  /// \param shards   over the ranks of the ring
  SharedAttention(const Links& links, Line ulysses, Line context, bool gathers, const HybridPlace& place,
                  const Placement& shards, const CpuOptions& options)
      : links_(links),
        ulysses_(std::move(ulysses)),
        context_(std::move(context)),
        gathers_(gathers),
        place_(place),
        shards_(shards),
        options_(options) {}

  [[nodiscard]] AttentionResult<T> forward(View<const T> q, View<const T> k, View<const T> v,
                                           const Scoring& all) {
    const auto heads = layout(q, k);
    const Scoring scoring = heads.scoring(all);
    const Tensor<T> own_q = heads.queries_to_heads(q);
    TravellingKv<T> kv = travelling(heads, k, v, scoring);
    CpuEngine<T> engine(scoring, options_);
    engine.begin(own_q, place_.shard(shards_));
    travelling_forward(engine, context_, transports(), kv);
    const AttentionResult<T> attended = engine.finish();
    return {heads.queries_to_sequence(attended.out.view()), heads.queries_to_sequence(attended.lse.view())};
  }

  [[nodiscard]] Gradients<T> backward(const ForwardResult<T>& forward, View<const T> k, View<const T> v,
                                      const Scoring& all) {
    const auto heads = layout(forward.q, k);
    const Scoring scoring = heads.scoring(all);
    const Tensor<T> q = heads.queries_to_heads(forward.q), out = heads.queries_to_heads(forward.out),
                    lse = heads.queries_to_heads(forward.lse),
                    grad_out = heads.queries_to_heads(forward.grad_out);
    TravellingKv<T> kv = travelling(heads, k, v, scoring),
                    sums(gathers_, kv.k().shape(), shards_, ring_rank());
    CpuBackward<T> engine(scoring, options_);
    const ForwardResult<T> own{q, out, lse, grad_out};
    engine.begin(own, place_.shard(shards_));
    travelling_backward(engine, context_, transports(), kv, sums);
    const Tensor<T> grad_q = engine.finish();
    return {heads.queries_to_sequence(grad_q.view()), heads.keys_to_sequence(View<const T>(sums.k())),
            heads.keys_to_sequence(View<const T>(sums.v()))};
  }

 private:
  using Layout = HeadLayout<Line>;

  [[nodiscard]] int ring_rank() const { return place_.ring.index(place_.rank); }
  [[nodiscard]] auto transports() const {
    return [this](int channel) { return links_.transport(channel); };
  }
  [[nodiscard]] Layout layout(View<const T> q, View<const T> k) {
    return Layout(ulysses_, place_, shards_, shards_, q.shape().heads, k.shape().heads);
  }
  /// K,V of this rank's shard and heads.
  [[nodiscard]] TravellingKv<T> travelling(const Layout& heads, View<const T> k, View<const T> v,
                                           const Scoring& scoring) {
    const Tensor<T> own_k = heads.keys_to_heads(k), own_v = heads.keys_to_heads(v);
    TravellingKv<T> kv(gathers_, own_k.shape(), shards_, ring_rank(), HostMemory{},
                       kv_hops(scoring.mask, shards_, shards_));
    std::ranges::copy(own_k.view().elements(), kv.k().data());
    std::ranges::copy(own_v.view().elements(), kv.v().data());
    return kv;
  }

  Links links_;
  Line ulysses_;
  Line context_;
  bool gathers_;
  HybridPlace place_;
  Placement shards_;
  CpuOptions options_;
};

/// The two functions of such an object.
template <class T, class Kind>
[[nodiscard]] Attention<T> as_attention(std::shared_ptr<Kind> kind) {
  return {[=](View<const T> q, View<const T> k, View<const T> v, const Scoring& scoring) {
            return kind->forward(q, k, v, scoring);
          },
          [=](const ForwardResult<T>& forward, View<const T> k, View<const T> v, const Scoring& scoring) {
            return kind->backward(forward, k, v, scoring);
          }};
}

}  // namespace ring_attention::model
