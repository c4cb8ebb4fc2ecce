/// \file
/// `TracedDevice`: a device whose engines write to a trace whose K,V they compute with, and when.
#pragma once

#include <optional>
#include <utility>

#include "plan/ring_time.hpp"
#include "program/backend.hpp"
#include "program/trace/traced_links.hpp"
#include "ring_attention/core/text.hpp"
#include "ring_attention/parallel/heads.hpp"

namespace ring_attention {

/// What a rank computes in one pass. K,V come in the order of a ring. On a GPU a slice is the time in which the host
/// enqueues.
class TracedSteps {
 public:
  TracedSteps(Trace& trace, const SharedAttention& shared, const char* pass, Mask mask, TokenRanges queries)
      : trace_(trace), grid_(shared.grid), mask_(std::move(mask)), queries_(std::move(queries)) {
    const Interval heads = HeadShare(shared.q.heads, shared.kv.heads, grid_.ulysses.size)
                               .query[static_cast<std::size_t>(grid_.ulysses.index(grid_.rank))];
    trace_.mark(Track::compute, pass,
                format("\"queries\":%s,\"heads\":[%lld,%lld]", json_of(queries_).c_str(),
                       static_cast<long long>(heads.begin), static_cast<long long>(heads.end)));
  }

  /// One step. \param compute  with these keys
  void step(const TokenRanges& keys, const auto& compute) {
    const int owner = grid_.ring.at(grid_.rank, grid_.ring.ring(grid_.rank).owner(step_));
    trace_.begin(Track::compute, format("K,V of %d", owner),
                 format("\"step\":%d,\"owner\":%d,\"keys\":%s,\"pairs\":%lld", step_, owner,
                        json_of(keys).c_str(), static_cast<long long>(visible_pairs(mask_, queries_, keys))));
    ++step_;
    compute();
    trace_.end(Track::compute);
  }
  /// The end of the pass.
  auto finish(const auto& compute) {
    trace_.begin(Track::compute, "finish");
    auto result = compute();
    trace_.end(Track::compute);
    return result;
  }

 private:
  Trace& trace_;
  RankGrid grid_;
  Mask mask_;
  TokenRanges queries_;
  int step_ = 0;
};

template <class T>
class TracedEngine : public Engine<T> {
 public:
  TracedEngine(std::unique_ptr<Engine<T>> engine, TracedSteps steps)
      : engine_(std::move(engine)), steps_(std::move(steps)) {}

  void accumulate(const KeyValue<T>& kv, const Progress& progress) override {
    steps_.step(kv.ranges, [&] { engine_->accumulate(kv, progress); });
  }
  [[nodiscard]] AttentionResult<SumOf<T>> finish() override {
    return steps_.finish([&] { return engine_->finish(); });
  }

 private:
  std::unique_ptr<Engine<T>> engine_;
  TracedSteps steps_;
};

template <class T>
class TracedBackward : public BackwardEngine<T> {
 public:
  TracedBackward(std::unique_ptr<BackwardEngine<T>> engine, TracedSteps steps)
      : engine_(std::move(engine)), steps_(std::move(steps)) {}

  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<SumOf<T>>& gradient,
                  const Progress& progress) override {
    steps_.step(kv.ranges, [&] { engine_->accumulate(kv, gradient, progress); });
  }
  [[nodiscard]] Tensor<SumOf<T>> finish() override {
    return steps_.finish([&] { return engine_->finish(); });
  }
  [[nodiscard]] TermGradients<SumOf<T>> term_gradients() override { return engine_->term_gradients(); }

 private:
  std::unique_ptr<BackwardEngine<T>> engine_;
  TracedSteps steps_;
};

/// Passes every call on to another device; its engines are traced.
template <class Input, class T = Input>
class TracedDevice : public Device<Input, T> {
 public:
  using Value = SumOf<Input>;

  /// All outlive this object.
  TracedDevice(const Device<Input, T>& device, Trace& trace, const SharedAttention& shared)
      : device_(device), trace_(trace), shared_(shared) {}

  [[nodiscard]] const Memory& memory() const override { return device_.memory(); }
  [[nodiscard]] std::unique_ptr<Engine<T>> forward(const Scoring& scoring, View<const Input> q,
                                                   const TokenRanges& ranges, const Terms<Value>& terms,
                                                   const ExpectedKeys& keys) const override {
    return std::make_unique<TracedEngine<T>>(device_.forward(scoring, q, ranges, terms, keys),
                                             TracedSteps(trace_, shared_, "forward", scoring.mask, ranges));
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<T>> backward(const Scoring& scoring,
                                                            const BackwardInputs<Input>& inputs,
                                                            const TokenRanges& ranges,
                                                            const ExpectedKeys& keys) const override {
    return std::make_unique<TracedBackward<T>>(
        device_.backward(scoring, inputs, ranges, keys),
        TracedSteps(trace_, shared_, "backward", scoring.mask, ranges));
  }
  [[nodiscard]] KeySums key_sums(Index dim, Index terms) const override {
    return device_.key_sums(dim, terms);
  }
  void place(View<T> shard, View<const Input> array) const override { device_.place(shard, array); }
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
  void place_written(View<T> shard, const std::function<void(View<Value>)>& write) const override {
    device_.place_written(shard, write);
  }

 private:
  const Device<Input, T>& device_;
  Trace& trace_;
  const SharedAttention& shared_;
};

/// A device and links, which are traced where there is a trace.
template <class Input, class T = Input>
class Traced {
 public:
  /// All outlive this object. \param trace  null: none
  Traced(const Device<Input, T>& device, Links& links, Trace* trace, const SharedAttention& shared)
      : plain_device_(device), plain_links_(links) {
    if (trace == nullptr) return;
    trace->describe(shared);
    device_.emplace(device, *trace, shared);
    links_.emplace(links, *trace, shared.grid.ulysses, shared.grid.ring, shared.grid.rank);
  }

  [[nodiscard]] const Device<Input, T>& device() const { return device_ ? *device_ : plain_device_; }
  [[nodiscard]] Links& links() { return links_ ? *links_ : plain_links_; }

 private:
  const Device<Input, T>& plain_device_;
  Links& plain_links_;
  std::optional<TracedDevice<Input, T>> device_;
  std::optional<TracedLinks> links_;
};

/// The same of a backend.
template <class Input, class T = Input>
class TracedBackend : public Backend<Input, T> {
 public:
  TracedBackend(Backend<Input, T>& backend, Trace* trace, const SharedAttention& shared)
      : backend_(backend), traced_(backend.device(), backend.links(), trace, shared) {}

  [[nodiscard]] const Device<Input, T>& device() const override { return traced_.device(); }
  [[nodiscard]] Links& links() override { return traced_.links(); }
  [[nodiscard]] BackendDescription description() const override { return backend_.description(); }
  [[nodiscard]] double input_roundoff() const override { return backend_.input_roundoff(); }
  void require_memory() const override { backend_.require_memory(); }

 private:
  Backend<Input, T>& backend_;
  Traced<Input, T> traced_;
};

/// One query over the keys of this rank. \param attend  computes it
auto traced_decoding(Trace& trace, const TokenRanges& keys, const TokenRanges& query, const Mask& mask,
                     const auto& attend) {
  trace.begin(Track::compute, "own K,V",
              format("\"queries\":%s,\"keys\":%s,\"pairs\":%lld", json_of(query).c_str(),
                     json_of(keys).c_str(), static_cast<long long>(visible_pairs(mask, query, keys))));
  auto state = attend();
  trace.end(Track::compute);
  return state;
}

}  // namespace ring_attention
