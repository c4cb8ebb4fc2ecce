/// \file
/// `RunAttention`: the forward and the backward of a run on one rank, in every partition.
#pragma once

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include "program/run/context.hpp"
#include "ring_attention/attention/sink.hpp"
#include "ring_attention/parallel/travelling_kv.hpp"
#include "ring_attention/ring/kv_hops.hpp"

namespace ring_attention {

/// The attention of a run on one rank, for any device: the code above it is compiled once for a type of arrays.
///
/// Arrays go in and come out as this rank holds them, in the memory of the host. Every function is collective.
template <class T>
struct AnyAttention {
  virtual ~AnyAttention() = default;

  [[nodiscard]] virtual BackendDescription description() const = 0;
  /// As of a Backend.
  [[nodiscard]] virtual double input_roundoff() const = 0;
  virtual void require_memory() const = 0;
  [[nodiscard]] virtual const Workload& work() const = 0;
  /// All messages of this rank, and those of the all-to-alls.
  [[nodiscard]] virtual TransportStatistics moved() const = 0;
  [[nodiscard]] virtual TransportStatistics all_to_all() const = 0;

  /// Before the forward and before the backward: a ring of the forward consumes K,V.
  /// \param read  read(array, shard) writes the K or V that this rank holds
  virtual void take_keys(const std::function<void(InputArray, View<T>)>& read) = 0;
  /// \param q, bias  stay with the caller until the backward is over
  virtual void forward(const Tensor<T>& q, const Tensor<T>& bias) = 0;
  [[nodiscard]] virtual const AttentionResult<T>& result() const = 0;
  /// After the forward.
  [[nodiscard]] virtual Gradients<T> backward(const Tensor<T>& grad_out) = 0;
};

/// Where ranks share heads, all-to-alls bring arrays to the layout that is computed, and back; only the bias is read in that
/// layout. All messages are between arrays where the device computes.
template <Backend Device>
class RunAttention final : public AnyAttention<typename Device::Value> {
 public:
  using T = typename Device::Value;
  using Input = typename Device::Input;
  using Memory = typename Device::Memory;

  explicit RunAttention(const RunContext& context)
      : run_(context),
        device_({run_.comm, run_.lines.ring(), run_.options, run_.activity, work_}),
        link_(device_.all_to_all(run_.shares_heads() ? run_.lines.ulysses() : run_.lines.ring())) {
    if (run_.shares_heads())
      layout_.emplace(link_, run_.place, run_.queries, run_.keys, run_.input.q().heads, run_.input.kv().heads,
                      device_.memory());
  }

  [[nodiscard]] BackendDescription description() const override { return device_.description(); }
  [[nodiscard]] double input_roundoff() const override { return device_.input_roundoff(); }
  void require_memory() const override { device_.require_memory(); }
  [[nodiscard]] const Workload& work() const override { return work_; }
  [[nodiscard]] TransportStatistics moved() const override { return link_.statistics() += ring_; }
  [[nodiscard]] TransportStatistics all_to_all() const override { return link_.statistics(); }

  void take_keys(const std::function<void(InputArray, View<T>)>& read) override {
    if (layout_ && std::exchange(has_keys_, true)) return;  // the backward has those of the forward
    if (!layout_) place_keys();
    for (const InputArray array : {InputArray::k, InputArray::v}) {
      const auto write = [&](View<T> shard) { read(array, shard); };
      if (!layout_) {
        device_.fill(array == InputArray::k ? kv_->k() : kv_->v(), write);
        continue;
      }
      Tensor<T>& held = array == InputArray::k ? held_k_ : held_v_;
      held = Tensor<T>(run_.input.kv().with_seq(count(run_.key_ranges)));
      write(held.view());
    }
  }

  void forward(const Tensor<T>& q, const Tensor<T>& bias) override {
    const View<const Input> queries = q_.take(device_, layout_, q.view());
    if (layout_) {
      k_ = keys_to_heads(held_k_);
      v_ = keys_to_heads(held_v_);
      place_kept_keys();
    }
    device_.set_queries(queries, run_.place.shard(run_.queries), bias);
    {
      auto engine = device_.forward_engine();
      auto&& ring_engine = device_.ring_engine(engine);
      ring_ += travelling_forward(ring_engine, link_, transports(), *kv_, beat_);
      device_.synchronize();
      computed_ = engine.finish();
    }
    if (layout_ || !on_host) held_ = {queries_here(computed_.out), queries_here(computed_.lse)};
    kv_.reset();
  }
  [[nodiscard]] const AttentionResult<T>& result() const override {
    if constexpr (on_host)
      if (!layout_) return computed_;
    return held_;
  }

  [[nodiscard]] Gradients<T> backward(const Tensor<T>& grad_out) override {
    Queries there;
    const View<const Input> computed_grad_out = there.take(device_, layout_, grad_out.view());
    if (layout_) place_kept_keys();
    TravellingKv<T, Memory> sums(run_.gathers(), work_.kv, run_.keys, run_.ring().rank, device_.memory());
    auto engine = device_.backward_engine(computed_, computed_grad_out);
    auto&& ring_engine = device_.ring_engine(engine);
    ring_ += travelling_backward(ring_engine, link_, transports(), *kv_, sums, beat_);
    device_.synchronize();
    kv_.reset();
    Gradients<T> gradients{
        queries_here(engine.finish()), keys_here(sums.k()), keys_here(sums.v()),
        bias_here(engine.bias_gradient()),
        sink_gradient<T>({{}, result().out, result().lse, grad_out}, run_.input.scoring().sinks)};
    sum_over_ranks(run_.comm, std::span(gradients.sinks));
    return gradients;
  }

 private:
  using Layout = HeadLayout<WatchedAllToAll, Memory>;
  template <class X>
  using Array = typename Memory::template Array<X>;
  using There = decltype(std::declval<Device&>().there(View<const T>()));
  using Computed = decltype(std::declval<Device&>().forward_engine().finish());
  static constexpr bool on_host = std::is_same_v<Memory, HostMemory>;

  /// q or dO where the device computes, in the layout that is computed.
  struct Queries {
    There held;
    Array<Input> of_heads;

    View<const Input> take(const Device& device, const std::optional<Layout>& layout, View<const T> array) {
      held = device.there(array);
      if (!layout) return held;
      of_heads = layout->queries_to_heads(View<const Input>(held));
      held = {};
      return of_heads;
    }
  };

  [[nodiscard]] auto transports() {
    return [this](int channel) { return device_.transport(static_cast<Watched::Channel>(channel)); };
  }

  void place_keys() {
    kv_.emplace(run_.gathers(), work_.kv, run_.keys, run_.ring().rank, device_.memory(),
                kv_hops(work_.scoring.mask, run_.queries, run_.keys));
  }
  void place_kept_keys() {
    place_keys();
    device_.fill(kv_->k(), k_);
    device_.fill(kv_->v(), v_);
    if (work_.gradients) return;
    k_ = {};
    v_ = {};
  }
  [[nodiscard]] Array<Input> keys_to_heads(Tensor<T>& held) const {
    Array<Input> of_heads = layout_->keys_to_heads(View<const Input>(device_.there(held)));
    held = {};
    return of_heads;
  }

  /// Results of this rank, in the memory of the host.
  [[nodiscard]] Tensor<T> queries_here(auto&& y) const {
    return layout_ ? device_.here(layout_->queries_to_sequence(View<const T>(y)))
                   : device_.here(std::forward<decltype(y)>(y));
  }
  [[nodiscard]] Tensor<T> keys_here(View<const T> y) const {
    return layout_ ? device_.here(layout_->keys_to_sequence(y)) : device_.here(y);
  }
  [[nodiscard]] Tensor<T> bias_here(Array<T>&& y) const {
    return layout_ && y.size() > 0
               ? device_.here(layout_->bias_to_sequence(View<const T>(y), run_.input.bias().heads))
               : device_.here(std::move(y));
  }

  const RunContext& run_;
  Workload work_ = run_.workload();
  Device device_;
  WatchedAllToAll link_;
  TransportStatistics ring_;
  Progress beat_ = [this] { run_.activity.beat(); };
  std::optional<Layout> layout_;  // where ranks share heads
  bool has_keys_ = false;
  Tensor<T> held_k_, held_v_;  // of layout_, until the forward
  Array<Input> k_, v_;         // of layout_
  Queries q_;
  std::optional<TravellingKv<typename Device::Element, Memory>> kv_;
  Computed computed_;
  AttentionResult<T> held_;  // unless it is computed_
};

}  // namespace ring_attention
