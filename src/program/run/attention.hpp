/// \file
/// `RunAttention`: the forward and the backward of a run on one rank: arrays of the host in and out, on any device.
#pragma once

#include <functional>
#include <utility>

#include "program/run/context.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"
#include "ring_attention/parallel/observed.hpp"
#include "ring_attention/parallel/term_gradients.hpp"

namespace ring_attention {

/// Every function is collective. K,V are written straight to where messages take them; only the bias is read in the layout
/// that is computed.
template <class Input, class T = Input>
class RunAttention {
 public:
  using Value = SumOf<Input>;

  RunAttention(const RunContext& context, Backend<Input, T>& backend)
      : run_(context),
        device_(*backend.device),
        links_(*backend.links),
        attention_(device_, links_, run_.shared, backend.observers->all()),
        layout_(attention_.layout()),
        on_host_(&device_.memory() == &host_memory()) {}

  /// What the ring of this rank has sent, and the all-to-alls.
  [[nodiscard]] TransportStatistics statistics() const {
    TransportStatistics all = all_to_all();
    return all += attention_.hops();
  }
  [[nodiscard]] TransportStatistics all_to_all() const { return exchanged(links_); }

  /// Before the forward and before the backward: a ring of the forward consumes K,V.
  /// \param read  read(array, shard) writes the K or V that this rank holds
  void take_keys(const std::function<void(InputArray, View<Value>)>& read) {
    if (!run_.shares_heads()) {
      kv_ = attention_.empty_kv();
      device_.stage_kv_with(kv_->k(), [&](View<Value> shard) { read(InputArray::k, shard); });
      device_.stage_kv_with(kv_->v(), [&](View<Value> shard) { read(InputArray::v, shard); });
    } else if (!std::exchange(has_keys_, true)) {  // the backward has those of the forward
      const KvShape held = run_.input.kv().with_seq(count(run_.key_ranges()));
      held_k_ = Tensor<Value>(held);
      held_v_ = Tensor<Value>(held.values());
      read(InputArray::k, held_k_);
      read(InputArray::v, held_v_);
    }
  }

  /// \param q, bias  stay with the caller until the backward is over; the bias in the layout that is computed
  void forward(const Tensor<Value>& q, const Tensor<Value>& bias) {
    q_ = queries_to_heads(q);
    bias_ = device_.values_to_device(bias);
    if (run_.shares_heads()) {
      k_ = keys_to_heads(held_k_);
      v_ = keys_to_heads(held_v_);
    }
    auto forward = attention_.begin_forward(q_, taken_kv(), bias_);
    if (!run_.options.wants_gradients()) {
      k_ = {};
      v_ = {};
    }
    attention_.travel(forward);
    computed_ = forward.engine->finish();
    if (!is_computed())
      held_ = {to_host(layout_.to_sequence(Held::queries, computed_.out.view())),
               to_host(layout_.to_sequence(Held::queries, computed_.lse.view()))};
  }
  [[nodiscard]] const AttentionResult<Value>& result() const { return is_computed() ? computed_ : held_; }

  /// After the forward.
  [[nodiscard]] Gradients<Value> backward(const Tensor<Value>& grad_out) {
    const MaybeOwned<Input> own_grad_out = queries_to_heads(grad_out);
    auto backward = attention_.begin_backward(
        {q_, computed_.out.view(), computed_.lse.view(), own_grad_out, bias_}, taken_kv());
    attention_.travel(backward);
    auto held = attention_.finish(backward);
    const auto on_host = [this](MaybeOwned<Value>&& array) { return to_host(std::move(array)); };
    Gradients<Value> gradients{to_host(std::move(held.q)),
                               to_host(std::move(held.k)),
                               to_host(std::move(held.v)),
                               {on_host(std::move(held.bias)), std::move(held.numbers)}};
    MpiAllToAll ranks(run_.comm);
    complete<Value>(gradients.terms(), ranks, {{}, result().out, result().lse, grad_out},
                    run_.input.scoring(), run_.options.same_bits, run_.input.q());
    all_reduce(ranks, gradients.numbers());
    return gradients;
  }

 private:
  /// Does the caller hold what the device has computed?
  [[nodiscard]] bool is_computed() const { return on_host_ && !run_.shares_heads(); }

  [[nodiscard]] MaybeOwned<Input> queries_to_heads(const Tensor<Value>& held) const {
    return layout_.to_heads(Held::queries, device_.to_device(held));
  }
  [[nodiscard]] MaybeOwned<Input> keys_to_heads(Tensor<Value>& held) const {
    MaybeOwned<Input> of_heads = layout_.to_heads(Held::keys, device_.to_device(held));
    held = {};
    return of_heads;
  }
  [[nodiscard]] Tensor<Value> to_host(MaybeOwned<Value>&& array) const {
    return device_.to_host(std::move(array));
  }
  [[nodiscard]] std::unique_ptr<KvWay<T>> taken_kv() {
    return run_.shares_heads() ? attention_.kv(k_, v_) : std::move(kv_);
  }

  const RunContext& run_;
  const Device<Input, T>& device_;
  Links& links_;
  ObservedContextParallel<Input, T> attention_;
  const HeadLayout& layout_;
  bool on_host_;
  std::unique_ptr<KvWay<T>> kv_;  // taken, unless ranks share heads
  // where ranks share heads
  bool has_keys_ = false;
  Tensor<Value> held_k_, held_v_;  // until the forward
  MaybeOwned<Input> k_, v_;        // in the layout that is computed

  MaybeOwned<Input> q_;
  MaybeOwned<Value> bias_;
  AttentionResult<Value> computed_;
  AttentionResult<Value> held_;  // of the host, unless it is computed_
};

}  // namespace ring_attention
