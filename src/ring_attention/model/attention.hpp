/// \file
/// `Attention`: the attention of a layer as two functions, and its kinds: one device, Ulysses with a ring, all-gather.
///
/// All kinds are the engines and partitions of the library. A layer does not know which it has.
#pragma once

#include <algorithm>
#include <functional>

#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/parallel/all_gather.hpp"
#include "ring_attention/parallel/head_layout.hpp"
#include "ring_attention/parallel/line.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
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

/// Ulysses over the heads and a ring over the shards: Ulysses alone with a ring of one, a ring alone with U = 1.
///
/// \tparam Links  makes the transports of the ring: transport(channel), as MpiMesh and LoopbackMesh do
template <class T, class Links>
class HybridAttention {
 public:
  /// \param ulysses  the line along place.ulysses
  /// \param shards   over the ranks of the ring
  HybridAttention(const Links& links, Line ulysses, const HybridPlace& place, const Placement& shards,
                  const CpuOptions& options)
      : links_(links), ulysses_(std::move(ulysses)), place_(place), shards_(shards), options_(options) {}

  [[nodiscard]] AttentionResult<T> forward(View<const T> q, View<const T> k, View<const T> v,
                                           const Scoring& all) {
    const auto heads = layout(q, k);
    const Scoring scoring = heads.scoring(all);
    const Tensor<T> own_q = heads.queries_to_heads(q);
    KvParcel<T> kv = parcel(heads, k, v, scoring);
    CpuEngine<T> engine(scoring, options_);
    engine.begin(own_q, place_.shard(shards_));
    {
      auto transport = links_.transport(0);
      ring_forward(engine, transport, kv);
    }
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
    KvParcel<T> kv = parcel(heads, k, v, scoring),
                sums(kv.k().shape(), shards_, place_.ring.index(place_.rank));
    CpuBackward<T> engine(scoring, options_);
    const ForwardResult<T> own{q, out, lse, grad_out};
    engine.begin(own, place_.shard(shards_));
    {
      auto kv_transport = links_.transport(0);
      auto gradient_transport = links_.transport(1);
      ring_backward(engine, kv_transport, gradient_transport, kv, sums);
    }
    const Tensor<T> grad_q = engine.finish();
    return {heads.queries_to_sequence(grad_q.view()), heads.keys_to_sequence(View<const T>(sums.k())),
            heads.keys_to_sequence(View<const T>(sums.v()))};
  }

 private:
  using Layout = HeadLayout<Line>;

  [[nodiscard]] Layout layout(View<const T> q, View<const T> k) {
    return Layout(ulysses_, place_, shards_, shards_, q.shape().heads, k.shape().heads);
  }
  /// K,V of this rank's shard and heads, where messages can take them.
  [[nodiscard]] KvParcel<T> parcel(const Layout& heads, View<const T> k, View<const T> v,
                                   const Scoring& scoring) {
    const Tensor<T> own_k = heads.keys_to_heads(k), own_v = heads.keys_to_heads(v);
    KvParcel<T> kv(own_k.shape(), shards_, place_.ring.index(place_.rank), HostMemory{},
                   kv_hops(scoring.mask, shards_, shards_));
    std::ranges::copy(own_k.view().elements(), kv.k().data());
    std::ranges::copy(own_v.view().elements(), kv.v().data());
    return kv;
  }

  Links links_;
  Line ulysses_;
  HybridPlace place_;
  Placement shards_;
  CpuOptions options_;
};

/// The K,V of all ranks are gathered before a rank computes.
template <class T>
class AllGatherAttention {
 public:
  /// \param context  the line of the ranks that share the sequences
  /// \param shards   over these ranks
  AllGatherAttention(Line context, const Placement& shards, const CpuOptions& options)
      : context_(std::move(context)), shards_(shards), options_(options) {}

  [[nodiscard]] AttentionResult<T> forward(View<const T> q, View<const T> k, View<const T> v,
                                           const Scoring& scoring) {
    KvShards<T> kv = gathered(k, v);
    CpuEngine<T> engine(scoring, options_);
    engine.begin(q, shards_.ranges(context_.rank()));
    all_gather_forward(engine, ring(), kv);
    return engine.finish();
  }

  [[nodiscard]] Gradients<T> backward(const ForwardResult<T>& forward, View<const T> k, View<const T> v,
                                      const Scoring& scoring) {
    KvShards<T> kv = gathered(k, v), sums(k.shape(), shards_);
    CpuBackward<T> engine(scoring, options_);
    engine.begin(forward, shards_.ranges(context_.rank()));
    all_gather_backward(engine, context_, kv, sums);
    return {engine.finish(), converted<T>(sums.k(context_.rank())), converted<T>(sums.v(context_.rank()))};
  }

 private:
  [[nodiscard]] Ring ring() const { return {context_.rank(), context_.size()}; }
  [[nodiscard]] KvShards<T> gathered(View<const T> k, View<const T> v) {
    KvShards<T> kv(k.shape(), shards_);
    std::ranges::copy(k.elements(), kv.k(context_.rank()).data());
    std::ranges::copy(v.elements(), kv.v(context_.rank()).data());
    all_gather(context_, kv);
    return kv;
  }

  Line context_;
  Placement shards_;
  CpuOptions options_;
};

/// The two functions of an object like these.
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
