/// \file
/// A ring with a mistake. The loops, forward.hpp and backward.hpp, stay as they are: the mistake is in what they are given, an
/// engine, a transport, or how scores are formed. `MistakenDevice` and `MistakenLinks` bring it into a ContextParallel,
/// `MistakenEngine` and `MistakenTransport` into a loop of one's own. Arrays are in memory of the host.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mistakes/ring_mistakes.hpp"
#include "ring_attention/parallel/observed.hpp"
#include "ring_attention/ring/transports/adapter.hpp"

namespace ring_attention {

/// How many hops the gradients of a shard make.
inline int gradient_hops(const RingMistake& mistake, const Ring& ring) {
  const int right = ring.gradient_hops();
  return mistake.gradient_hops == nullptr ? right : mistake.gradient_hops(right);
}

/// What the steps of a rank compute with.
template <class T>
class MistakenSteps {
 public:
  /// \param arriving  where a loop of one's own receives the next parcel; a MistakenTransport knows it
  MistakenSteps(const RingMistake& mistake, const Ring& ring, Placement keys,
                std::function<const T*()> arriving = {})
      : mistake_(mistake), ring_(ring), keys_(std::move(keys)), arriving_(std::move(arriving)) {}

  [[nodiscard]] const RingMistake& mistake() const { return mistake_; }

  /// Calls compute(kv, step) as often as the mistake uses the K,V of this step, with what it takes for them.
  /// \param heads  of the queries
  /// \throws InputError where it takes those of a shard of another length
  void next(KeyValue<T> kv, Index heads, const auto& compute) {
    const int step = step_++;
    if (mistake_.swaps_early && arriving_ && step + 1 < ring_.steps())
      kv = {{arriving_(), kv.k.shape()}, {arriving_() + kv.k.size(), kv.v.shape()}, kv.ranges};
    if (mistake_.content != nullptr) {
      arrived_.push_back({copied(kv.k), copied(kv.v)});
      const auto [k, v] = mistake_.content(step);
      kv.k = arrived_[static_cast<std::size_t>(k)].k;
      kv.v = arrived_[static_cast<std::size_t>(v)].v;
    }
    if (mistake_.keys != nullptr) kv.ranges = mistake_.keys({keys_, ring_, step});
    if (kv.k.shape().seq != kv.v.shape().seq || kv.k.shape().seq != count(kv.ranges))
      throw InputError("the mistake " + std::string(mistake_.id) + " needs shards of one length");
    Arrays of_query_heads;
    if (takes_query_heads()) {
      of_query_heads = {by_query_head(kv.k, heads), by_query_head(kv.v, heads)};
      kv.k = of_query_heads.k;
      kv.v = of_query_heads.v;
    }
    const int times = mistake_.times == nullptr ? 1 : mistake_.times(step, ring_.steps());
    for (int i = 0; i < times; ++i) compute(kv, step);
  }
  /// Does each query head get a copy of its KV head?
  [[nodiscard]] bool takes_query_heads() const {
    return mistake_.kv_head != nullptr || mistake_.share != nullptr;
  }
  /// Adds the gradient of each copy to the gradient of its KV head.
  void add_copies(const View<T>& sum, const Tensor<T>& copies) const {
    const Index heads = copies.shape().heads, group = heads / sum.shape().heads;
    const Index numbers = sum.shape().seq * sum.shape().dim;
    for (Index b = 0; b < sum.shape().batch; ++b)
      for (Index h = 0; h < heads; ++h) {
        const T share = mistake_.share == nullptr ? 1 : mistake_.share(h % group, group);
        T* const to = sum.head(b, kv_head(h, heads, sum.shape().heads));
        for (Index i = 0; i < numbers; ++i) to[i] += share * copies.view().head(b, h)[i];
      }
  }

 private:
  struct Arrays {
    Tensor<T> k, v;
  };
  [[nodiscard]] static Tensor<T> copied(View<const T> array) {
    Tensor<T> copy(array.shape());
    std::ranges::copy(array.elements(), copy.data());
    return copy;
  }
  [[nodiscard]] Index kv_head(Index head, Index heads, Index kv_heads) const {
    const Index group = heads / kv_heads;
    return mistake_.kv_head == nullptr ? head / group : mistake_.kv_head(head, kv_heads);
  }
  [[nodiscard]] Tensor<T> by_query_head(View<const T> array, Index heads) const {
    Shape shape = array.shape();
    shape.heads = heads;
    Tensor<T> copies(shape);
    for (Index b = 0; b < shape.batch; ++b)
      for (Index h = 0; h < heads; ++h)
        std::copy_n(array.head(b, kv_head(h, heads, array.shape().heads)), shape.seq * shape.dim,
                    copies.view().head(b, h));
    return copies;
  }

  const RingMistake& mistake_;
  Ring ring_;
  Placement keys_;
  std::function<const T*()> arriving_;
  std::vector<Arrays> arrived_;
  int step_ = 0;
};

/// Gives another engine what the mistake takes for the K,V of each step.
template <class T>
class MistakenEngine : public Engine<T> {
 public:
  /// \param heads  of the queries
  MistakenEngine(std::shared_ptr<Engine<T>> engine, MistakenSteps<T> steps, Index heads)
      : engine_(std::move(engine)), steps_(std::move(steps)), heads_(heads) {}

  void accumulate(const KeyValue<T>& kv, const Progress& progress = {}) override {
    steps_.next(kv, heads_, [&](const KeyValue<T>& taken, int) { engine_->accumulate(taken, progress); });
  }
  [[nodiscard]] AttentionResult<SumOf<T>> finish() override { return engine_->finish(); }

 private:
  std::shared_ptr<Engine<T>> engine_;
  MistakenSteps<T> steps_;
  Index heads_;
};

/// A MistakenEngine of the backward, which also changes dK,dV and dQ as the mistake does.
class MistakenBackward : public BackwardEngine<float> {
 public:
  /// Makes the engine when the rank's own K,V are there.
  using Begin = std::function<std::unique_ptr<BackwardEngine<float>>(const KeyValue<float>& own)>;

  MistakenBackward(Begin begin, MistakenSteps<float> steps, Index heads, double scale)
      : begin_(std::move(begin)), steps_(std::move(steps)), heads_(heads), scale_(scale) {}

  void accumulate(const KeyValue<float>& kv, const KeyValueGradient<float>& gradient,
                  const Progress& progress = {}) override {
    if (engine_ == nullptr) engine_ = begin_(kv);
    steps_.next(kv, heads_, [&](const KeyValue<float>& taken, int step) {
      if (steps_.takes_query_heads()) {
        Tensor<float> k(taken.k.shape()), v(taken.v.shape());
        engine_->accumulate(taken, {k, v}, progress);
        steps_.add_copies(gradient.k, k);
        steps_.add_copies(gradient.v, v);
      } else {
        engine_->accumulate(taken, gradient, progress);
      }
      if (steps_.mistake().part != nullptr) steps_.mistake().part(gradient, step, scale_);
    });
  }
  [[nodiscard]] Tensor<float> finish() override {
    Tensor<float> dq = engine_->finish();
    if (steps_.mistake().dq_factor != nullptr)
      mistakes::scale(dq, static_cast<float>(steps_.mistake().dq_factor(scale_)));
    return dq;
  }
  [[nodiscard]] TermGradients<float> term_gradients() override { return engine_->term_gradients(); }

 private:
  Begin begin_;
  MistakenSteps<float> steps_;
  Index heads_;
  double scale_;
  std::unique_ptr<BackwardEngine<float>> engine_;
};

/// Moves parcels as the mistake does. A hop that it leaves out keeps the parcel where it is.
class MistakenTransport : public TransportAdapter {
 public:
  MistakenTransport(std::unique_ptr<Transport> transport, const RingMistake& mistake, Channel channel)
      : TransportAdapter(std::move(transport)), mistake_(mistake), channel_(channel) {}

  void start(const Hop& hop) override {
    hop_ = hop;
    ++hops_;
    if (is_left_out()) return;
    TransportAdapter::start(hop);
    if (!swaps_early()) return;
    TransportAdapter::finish();
    swap();  // what is computed with now belongs to the next step
  }
  void finish() override {
    if (swaps_early())
      swap();
    else if (is_left_out())
      std::copy_n(hop_.send.begin(), shorter(), hop_.receive.begin());
    else
      TransportAdapter::finish();
    if (of_gradients() && mistake_.overwrites_gradients && hops_ < ring().gradient_hops())
      std::ranges::fill(hop_.receive, std::byte{0});
  }

 private:
  [[nodiscard]] bool of_gradients() const { return channel_ == Channel::gradients; }
  [[nodiscard]] bool swaps_early() const { return !of_gradients() && mistake_.swaps_early; }
  [[nodiscard]] bool is_left_out() const { return of_gradients() && hops_ > gradient_hops(mistake_, ring()); }
  [[nodiscard]] std::size_t shorter() const { return std::min(hop_.send.size(), hop_.receive.size()); }
  void swap() const {
    auto* const current = const_cast<std::byte*>(hop_.send.data());  // NOLINT: the mistake itself
    std::swap_ranges(current, current + shorter(), hop_.receive.data());
  }

  const RingMistake& mistake_;
  Channel channel_;
  Hop hop_;
  int hops_ = 0;
};

/// A device whose engines make the mistake. Observers see what is computed.
class MistakenDevice : public ObservedDevice<float, float> {
  using Right = ObservedDevice<float, float>;

 public:
  /// \param device, mistake  outlive it  \param keys  over the ranks of `ring`
  MistakenDevice(const Device<float>& device, const RingMistake& mistake, const Ring& ring, Placement keys,
                 const Observers& by = {})
      : Right(device, by), mistake_(mistake), ring_(ring), keys_(std::move(keys)) {}

  [[nodiscard]] std::unique_ptr<Engine<float>> forward(const Scoring& scoring, View<const float> q,
                                                       const TokenRanges& ranges, View<const float> bias,
                                                       const ExpectedKeys& keys) const override {
    const Scoring how = scored(scoring);
    const TokenRanges where = placed(ranges);
    std::unique_ptr<Engine<float>> engine = Right::forward(how, q, where, bias, keys);
    if (mistake_.merge.any())
      engine = std::make_unique<MergingEngine>(std::move(engine), mistake_.merge, how, q, where, bias);
    return std::make_unique<MistakenEngine<float>>(
        std::move(engine), MistakenSteps<float>(mistake_, ring_, keys_), q.shape().heads);
  }
  [[nodiscard]] std::unique_ptr<BackwardEngine<float>> backward(const Scoring& scoring,
                                                                const BackwardInputs<float>& inputs,
                                                                const TokenRanges& ranges,
                                                                const ExpectedKeys& keys) const override {
    const auto begin = [=, this, how = scored(scoring), where = placed(ranges),
                        kept = std::make_shared<AttentionResult<float>>()](const KeyValue<float>& own) {
      BackwardInputs<float> given = inputs;
      if (mistake_.forward != nullptr) {
        const auto engine = Right::forward(how, given.q, where, given.bias, keys);
        engine->accumulate(own);
        *kept = engine->finish();
        mistake_.forward(given, *kept);
      }
      return Right::backward(how, given, where, keys);
    };
    return std::make_unique<MistakenBackward>(begin, MistakenSteps<float>(mistake_, ring_, keys_),
                                              inputs.q.shape().heads, scoring.scale);
  }

 private:
  [[nodiscard]] Scoring scored(Scoring how) const {
    if (mistake_.scoring != nullptr) mistake_.scoring(how);
    return how;
  }
  [[nodiscard]] TokenRanges placed(const TokenRanges& right) const {
    return mistake_.queries == nullptr ? right : mistake_.queries({keys_, ring_, 0});
  }

  const RingMistake& mistake_;
  Ring ring_;
  Placement keys_;
};

/// Links whose transports make the mistake. Observers see what is sent. K,V have to make every hop
/// (SharedAttention::every_hop): which ones a wrong mask needs is not known.
class MistakenLinks : public ObservedLinks {
 public:
  /// \param links, mistake  outlive it
  MistakenLinks(Links& links, const RingMistake& mistake, const RankGrid& grid, const Observers& by = {})
      : ObservedLinks(links, by, grid), mistake_(mistake) {}

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) override {
    return std::make_unique<MistakenTransport>(ObservedLinks::transport(channel, most_bytes), mistake_,
                                               channel);
  }

 private:
  const RingMistake& mistake_;
};

}  // namespace ring_attention
