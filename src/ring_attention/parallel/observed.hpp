/// \file
/// A ContextParallel whose messages and engines tell observers: it is given links and a device that wrap those of the caller.
#pragma once

#include <utility>

#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/observer.hpp"

namespace ring_attention {

/// Passes every call to other links, which outlive it, and tells the observers.
class ObservedLinks : public Links {
 public:
  ObservedLinks(Links& links, Observers by, const RankGrid& grid)
      : links_(links),
        by_(std::move(by)),
        ring_(observed(borrowed(links.ring()), by_, PieceExchange::Along::ring, grid.ring)),
        ulysses_(observed(borrowed(links.ulysses()), by_, PieceExchange::Along::ulysses, grid.ulysses)) {}

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) override {
    return observed(links_.transport(channel, most_bytes), by_, channel);
  }
  [[nodiscard]] AllToAll& ring() override { return *ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return *ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override { return links_.group(axis); }
  void shares(const SharedAttention& shared) override { tell(by_, &Observer::shares, shared); }
  void progress() override {
    tell(by_, &Observer::beats);
    links_.progress();
  }

 private:
  [[nodiscard]] static Group borrowed(AllToAll& group) { return {std::shared_ptr<void>(), &group}; }

  Links& links_;
  Observers by_;
  Group ring_, ulysses_;
};

/// Passes every call to another device, which outlives it. Its engines tell the observers.
template <class Input, class T>
class ObservedDevice : public Device<Input, T> {
 public:
  using Value = SumOf<Input>;

  ObservedDevice(const Device<Input, T>& device, Observers by) : device_(device), by_(std::move(by)) {}

  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const Input> q,
                                                   const TokenRanges& ranges, View<const Value> bias,
                                                   const ExpectedKeys& keys) const override {
    return observed(device_.forward(scoring, q, ranges, bias, keys), by_,
                    Pass{"forward", scoring.mask, ranges});
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<T>> backward(const Scoring& scoring,
                                                            const BackwardInputs<Input>& inputs,
                                                            const TokenRanges& ranges,
                                                            const ExpectedKeys& keys) const override {
    return observed(device_.backward(scoring, inputs, ranges, keys), by_,
                    Pass{"backward", scoring.mask, ranges});
  }

  [[nodiscard]] const Memory& memory() const override { return device_.memory(); }
  [[nodiscard]] std::string name() const override { return device_.name(); }
  [[nodiscard]] int threads() const override { return device_.threads(); }
  void check(const SharedAttention& shared, bool backward) const override { device_.check(shared, backward); }
  [[nodiscard]] bool is_exact() const override { return device_.is_exact(); }
  [[nodiscard]] GradientAccumulator gradient_accumulator(Index dim, Index terms) const override {
    return device_.gradient_accumulator(dim, terms);
  }
  void stage_kv(View<T> shard, View<const Input> array) const override { device_.stage_kv(shard, array); }
  void synchronize() const override { device_.synchronize(); }
  [[nodiscard]] MaybeOwned<Input> to_device(View<const Value> host) const override {
    return device_.to_device(host);
  }
  [[nodiscard]] MaybeOwned<Value> values_to_device(View<const Value> host) const override {
    return device_.values_to_device(host);
  }
  [[nodiscard]] Tensor<Value> to_host(MaybeOwned<Value>&& array) const override {
    return device_.to_host(std::move(array));
  }
  void stage_kv_with(View<T> shard, const std::function<void(View<Value>)>& write) const override {
    device_.stage_kv_with(shard, write);
  }

 private:
  const Device<Input, T>& device_;
  Observers by_;
};

/// The links and the device of an ObservedContextParallel, which exist before it.
template <class Input, class T>
struct ObservedParts {
  ObservedDevice<Input, T> observed_device;
  ObservedLinks observed_links;
};

/// All that are given outlive it.
template <class Input, class T = Input>
class ObservedContextParallel : ObservedParts<Input, T>, public ContextParallel<Input, T> {
 public:
  ObservedContextParallel(const Device<Input, T>& device, Links& links, SharedAttention shared,
                          const Observers& by)
      : ObservedParts<Input, T>{{device, by}, {links, by, shared.grid}},
        ContextParallel<Input, T>(this->observed_device, this->observed_links, std::move(shared)) {}
};

}  // namespace ring_attention
