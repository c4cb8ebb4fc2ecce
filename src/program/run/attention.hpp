/// \file
/// `RunAttention`: the forward and the backward of a run on one rank, in every partition.
#pragma once

#include <optional>
#include <utility>

#include "program/run/context.hpp"
#include "ring_attention/attention/sink.hpp"
#include "ring_attention/parallel/all_gather.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/kv_hops.hpp"

namespace ring_attention {

/// Arrays go in and come out as this rank holds them. Where ranks share heads, all-to-alls bring them to the layout that is
/// computed, and back; only the bias is read in that layout. All-to-alls and all-gathers are in the memory of the host; an
/// engine of a GPU cannot have K,V there, so the flags refuse an all-gather for it. Every function is collective.
template <Backend Device>
class RunAttention {
 public:
  using T = typename Device::Value;
  using Element = typename Device::Element;
  using Memory = typename Device::Memory;

  explicit RunAttention(const RunContext& context)
      : run_(context),
        device_({run_.comm, run_.lines.ring(), run_.options, run_.activity, work_}),
        link_(run_.activity, run_.gathers() ? run_.lines.ring() : run_.lines.ulysses()) {
    if (run_.shares_heads())
      layout_.emplace(link_, run_.place, run_.queries, run_.keys, run_.input.q().heads,
                      run_.input.kv().heads);
  }

  [[nodiscard]] const Device& device() const { return device_; }
  [[nodiscard]] const Workload& work() const { return work_; }
  /// All messages of this rank, and those of the all-to-alls.
  [[nodiscard]] TransportStatistics moved() const {
    TransportStatistics all = link_.statistics();
    add(all, ring_);
    return all;
  }
  [[nodiscard]] TransportStatistics all_to_all() const { return link_.statistics(); }

  /// Before the forward and before the backward: a ring of the forward consumes K,V.
  /// \param read  read(array, shard) writes the K or V that this rank holds
  void take_keys(const auto& read) {
    if (!layout_) return place_keys(read);
    if (std::exchange(has_keys_, true)) return;  // the backward has those of the forward
    for (auto [array, to] : {std::pair(InputArray::k, &k_), std::pair(InputArray::v, &v_)}) {
      *to = Tensor<T>(run_.input.kv().with_seq(count(run_.key_ranges)));
      read(array, to->view());
    }
  }

  /// \param q, bias  stay with the caller until the backward is over
  void forward(const Tensor<T>& q, const Tensor<T>& bias) {
    q_ = layout_ ? &q_of_heads_ : &q;
    if (layout_) {
      q_of_heads_ = layout_->queries_to_heads(q.view());
      k_ = layout_->keys_to_heads(std::as_const(k_).view());
      v_ = layout_->keys_to_heads(std::as_const(v_).view());
      place_kept_keys();
      if (!work_.gradients) {
        k_ = {};
        v_ = {};
      }
    }
    device_.set_queries(*q_, run_.place.shard(run_.queries), bias);
    {
      auto engine = device_.forward_engine();
      feed(engine);
      computed_ = device_.finish(engine);
    }
    if (layout_)
      held_ = {layout_->queries_to_sequence(std::as_const(computed_.out).view()),
               layout_->queries_to_sequence(std::as_const(computed_.lse).view())};
    forget_keys();
  }
  [[nodiscard]] const AttentionResult<T>& result() const { return layout_ ? held_ : computed_; }

  /// After the forward.
  [[nodiscard]] Gradients<T> backward(const Tensor<T>& grad_out) {
    Tensor<T> of_heads;
    if (layout_) {
      of_heads = layout_->queries_to_heads(grad_out.view());
      place_kept_keys();
    }
    const Tensor<T>& computed_grad_out = layout_ ? of_heads : grad_out;
    auto engine = device_.backward_engine(computed_, computed_grad_out);
    Gradients<T> gradients = feed_backward(engine);
    gradients.sinks =
        sink_gradient<T>({*q_, computed_.out, computed_.lse, computed_grad_out}, work_.scoring.sinks);
    if (layout_) gradients = in_sequence(gradients);
    sum_over_ranks(run_.comm, std::span(gradients.sinks));
    forget_keys();
    return gradients;
  }

 private:
  static void add(TransportStatistics& sum, const TransportStatistics& term) {
    sum.messages_sent += term.messages_sent;
    sum.bytes_sent += term.bytes_sent;
    sum.exposed_seconds += term.exposed_seconds;
  }

  /// Where messages take them.
  void place_keys(const auto& read) {
    const auto fill = [&](View<Element> k, View<Element> v) {
      device_.fill(k, [&](View<T> shard) { read(InputArray::k, shard); });
      device_.fill(v, [&](View<T> shard) { read(InputArray::v, shard); });
    };
    const int own = run_.ring().rank;
    if (run_.gathers()) {
      shards_.emplace(work_.kv, run_.keys);
      fill(shards_->k(own), shards_->v(own));
    } else {
      parcel_.emplace(work_.kv, run_.keys, own, device_.memory(),
                      kv_hops(work_.scoring.mask, run_.queries, run_.keys));
      fill(parcel_->k(), parcel_->v());
    }
  }
  void place_kept_keys() {
    place_keys([&](InputArray array, View<T> shard) {
      std::ranges::copy((array == InputArray::k ? k_ : v_).view().elements(), shard.data());
    });
  }
  void forget_keys() {
    parcel_.reset();
    shards_.reset();
  }

  /// Gives the K,V of all ranks to the engine.
  void feed(auto& engine) {
    auto&& ring_engine = device_.ring_engine(engine);
    if (shards_) {
      all_gather(link_, *shards_);
      return all_gather_forward(ring_engine, run_.ring(), *shards_, beat_);
    }
    Watched transport = device_.transport(Watched::kv);
    ring_forward(ring_engine, transport, *parcel_);
    add(ring_, transport.statistics());
  }

  Gradients<T> feed_backward(auto& engine) {
    auto&& ring_engine = device_.ring_engine(engine);
    const int own = run_.ring().rank;
    if (shards_) {
      KvShards<T> sums(work_.kv, run_.keys);
      all_gather(link_, *shards_);
      all_gather_backward(ring_engine, link_, *shards_, sums, beat_);
      return device_.finish(engine, {sums.k(own), sums.v(own)});
    }
    KvParcel<T, Memory> sums(work_.kv, run_.keys, own, device_.memory());
    Watched transport = device_.transport(Watched::kv), gradients = device_.transport(Watched::gradients);
    ring_backward(ring_engine, transport, gradients, *parcel_, sums);
    add(ring_, transport.statistics());
    add(ring_, gradients.statistics());
    return device_.finish(engine, {sums.k(), sums.v()});
  }

  [[nodiscard]] Gradients<T> in_sequence(const Gradients<T>& of_heads) const {
    const Shape& bias = run_.input.bias();
    return {layout_->queries_to_sequence(of_heads.q.view()), layout_->keys_to_sequence(of_heads.k.view()),
            layout_->keys_to_sequence(of_heads.v.view()),
            bias.size() > 0 ? layout_->bias_to_sequence(of_heads.bias.view(), bias.heads) : Tensor<T>(),
            layout_->among_all(of_heads.sinks)};
  }

  const RunContext& run_;
  Workload work_ = run_.workload();
  Device device_;
  WatchedAllToAll link_;
  TransportStatistics ring_;
  Progress beat_ = [this] { run_.activity.beat(); };
  std::optional<HeadLayout<WatchedAllToAll>> layout_;  // where ranks share heads
  bool has_keys_ = false;
  Tensor<T> q_of_heads_, k_, v_;                     // of layout_
  const Tensor<T>* q_ = nullptr;                     // in the layout that is computed
  std::optional<KvParcel<Element, Memory>> parcel_;  // of a ring
  std::optional<KvShards<Element>> shards_;          // of an all-gather
  AttentionResult<T> computed_, held_;               // held_: of layout_
};

}  // namespace ring_attention
