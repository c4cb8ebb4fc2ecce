/// \file
/// `ContextParallel`: an attention whose tokens and heads several ranks share: the one place that composes layout,
/// placement, engine and messages, forward and backward, for every partition and every device.
///
/// A rank brings its arrays to the layout that it computes (HeadLayout), writes K,V to where messages take them (KvWay),
/// lets an engine of its Device begin on its queries, feeds it the K,V of all ranks over its Links, and brings the results
/// back. A plain ring runs kv_ring.hpp, parcel.hpp, forward.hpp or backward.hpp and a transport, and an engine. Who observes
/// it makes an ObservedContextParallel (observed.hpp).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "ring_attention/parallel/device.hpp"
#include "ring_attention/parallel/partition.hpp"

namespace ring_attention {

/// K,V travel around a ring of all ranks; each computes all heads of its tokens.
[[nodiscard]] Division ring();

/// Runs a step of the preparation, which may throw, on all ranks: a collective call may agree on its failure.
using CollectiveStep = std::function<void(const std::function<void()>& step)>;
inline void on_this_rank(const std::function<void()>& step) { step(); }

/// One rank's part. Every function that computes is collective over the ranks that share the attention.
/// \tparam Input  of q, k, v and dO where the device computes  \tparam T  of K,V in messages
template <class Input, class T = Input>
class ContextParallel {
 public:
  using Value = SumOf<Input>;

  /// \param device, links  outlive this object
  /// \throws InputError when the ranks cannot share these heads
  ContextParallel(const Device<Input, T>& device, Links& links, SharedAttention shared);

  // ---- arrays as this rank holds them: all heads of its slice of the tokens ----------------------------

  /// \param bias      the rows of this rank's queries; empty where SharedAttention has none
  /// \param collectively  runs the step that allocates, before the first message of a ring or an all-gather
  [[nodiscard]] AttentionResult<Value> forward(View<const Input> q, View<const Input> k, View<const Input> v,
                                               View<const Value> bias = {},
                                               const CollectiveStep& collectively = on_this_rank);
  /// The gradients of q, k, v and of the bias; complete() of term_gradients.hpp adds the others.
  [[nodiscard]] Gradients<Value> backward(const BackwardInputs<Input>& inputs, View<const Input> k,
                                          View<const Input> v,
                                          const CollectiveStep& collectively = on_this_rank);

  // ---- the same in steps: arrays in the layout that is computed ------------------------------------------

  [[nodiscard]] const SharedAttention& shared() const { return shared_; }
  [[nodiscard]] const Memory& memory() const { return device_.memory(); }
  [[nodiscard]] const HeadLayout& layout() const { return *layout_; }

  /// Zeros where K,V of this rank belong before they travel.
  [[nodiscard]] std::unique_ptr<KvWay<T>> empty_kv() const;
  /// K,V of this rank, copied to where messages take them.
  [[nodiscard]] std::unique_ptr<KvWay<T>> kv(View<const Input> k, View<const Input> v) const;

  /// A pass that has begun: its memory is allocated, and nothing is sent. The arrays stay with the caller.
  template <class E>
  struct Begun {
    std::unique_ptr<E> engine;
    std::unique_ptr<KvWay<T>> kv;
  };
  using Forward = Begun<Engine<T>>;
  using Backward = Begun<BackwardEngine<T>>;
  [[nodiscard]] Forward begin_forward(View<const Input> q, std::unique_ptr<KvWay<T>> kv,
                                      View<const Value> bias = {});
  [[nodiscard]] Backward begin_backward(const BackwardInputs<Input>& inputs, std::unique_ptr<KvWay<T>> kv);
  /// Feeds the K,V of all ranks to the engine. Then its finish() is the result of a forward; of a backward it has dQ and the
  /// gradient of the bias, and `kv` has dK,dV of this rank.
  void travel(Forward& forward);
  void travel(Backward& backward);

  /// Gradients as this rank holds them, of which dK,dV may be in the backward's memory.
  struct HeldGradients {
    MaybeOwned<Value> q, k, v;
    MaybeOwned<Value> bias;
    TermNumbers numbers;  // of this rank's rows and heads
  };
  /// Results after travel(), as this rank holds them. Frees the engine and K,V.
  [[nodiscard]] AttentionResult<Value> finish(Forward& forward) const;
  [[nodiscard]] HeldGradients finish(Backward& backward) const;
  /// A backward of arrays as this rank holds them, after travel().
  [[nodiscard]] Backward travelled(const BackwardInputs<Input>& inputs, View<const Input> k,
                                   View<const Input> v, const CollectiveStep& collectively);

  /// What this rank has sent over its ring.
  [[nodiscard]] const TransportStatistics& hops(Channel channel) const {
    return hops_[static_cast<std::size_t>(channel)];
  }
  [[nodiscard]] TransportStatistics hops() const {
    TransportStatistics all = hops_[0];
    return all += hops_[1];
  }

 private:
  /// \throws Error unless the bias has the rows of the queries that this rank computes, or there is none
  void require_rows(View<const Value> bias) const;
  /// K,V of the largest shard, in the heads of this rank.
  [[nodiscard]] ExpectedKeys expected_keys() const;
  /// dK or dV after the last hop, as this rank holds them.
  [[nodiscard]] MaybeOwned<Value> held_sums(View<const Value> sums, const GradientAccumulator& how) const;
  [[nodiscard]] GradientAccumulator accumulator(Index dim) const;
  /// Lets K,V travel, and counts what they send. After a failure they live as long as the process.
  void send(std::unique_ptr<KvWay<T>>& kv, const auto& pass);

  const Device<Input, T>& device_;
  Links& links_;
  SharedAttention shared_;
  std::unique_ptr<HeadLayout> layout_;
  TokenRanges query_ranges_;
  Scoring scoring_;
  KvShape kv_;                               // of the heads of this rank
  GradientAccumulator sums_k_, sums_v_;      // of its dK and dV
  std::array<TransportStatistics, 2> hops_;  // of the channels
};

}  // namespace ring_attention
