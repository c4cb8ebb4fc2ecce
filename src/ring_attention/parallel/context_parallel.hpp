/// \file
/// `ContextParallel`: an attention whose tokens and heads several ranks share: the one place that composes layout,
/// placement, engine and messages, forward and backward, for every partition and every device.
///
/// A rank brings its arrays to the layout that it computes (HeadLayout), writes K,V to where messages take them
/// (KvExchange), lets an engine of its Device begin on its queries, feeds it the K,V of all ranks over its Links, and brings
/// the results back. The partitions differ in two of these: the layout, and how K,V get to the other ranks.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <utility>

#include "ring_attention/parallel/device.hpp"
#include "ring_attention/parallel/head_layout.hpp"
#include "ring_attention/parallel/kv_exchange.hpp"
#include "ring_attention/parallel/links.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/kv_hops.hpp"

namespace ring_attention {

/// What the ranks share, the same on all of them but for their grid.
struct SharedAttention {
  RankGrid grid;           ///< of this rank
  bool gathers = false;    ///< all-gather K,V over the ranks of the ring; no rank shares heads then
  Placements tokens;       ///< over the ranks of the ring
  Shape q, kv;             ///< `[batch, heads, any, dim]` of the whole attention
  Scoring scoring;         ///< of all heads
  bool every_hop = false;  ///< K,V also make the hops that the mask makes unnecessary (kv_hops())
};

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

  /// \param bias  may be empty
  [[nodiscard]] AttentionResult<Value> forward(View<const Input> q, View<const Input> k, View<const Input> v,
                                               View<const Value> bias = {});
  /// The gradients of q, k, v and the bias; those of sinks are sink_gradient()'s, summed over the ranks.
  [[nodiscard]] Gradients<Value> backward(const BackwardInputs<Input>& inputs, View<const Input> k,
                                          View<const Input> v);

  // ---- the same in steps: arrays in the layout that is computed ------------------------------------------

  [[nodiscard]] const HeadLayout& layout() const { return layout_; }
  /// What this rank computes: positions of its tokens, and the scoring of its heads.
  [[nodiscard]] const TokenRanges& query_ranges() const { return query_ranges_; }
  [[nodiscard]] const Scoring& scoring() const { return scoring_; }

  /// Zeros where K,V of this rank belong before they travel.
  [[nodiscard]] KvExchange<T> empty_kv() const;
  /// K,V of this rank, copied to where messages take them.
  [[nodiscard]] KvExchange<T> kv(View<const Input> k, View<const Input> v) const;

  /// A forward that has begun: all its memory is allocated, and nothing is sent. Movable; the arrays stay with the caller.
  struct Forward {
    std::unique_ptr<Engine<T>> engine;
    KvExchange<T> kv;
  };
  [[nodiscard]] Forward begin_forward(View<const Input> q, KvExchange<T> kv,
                                      View<const Value> bias = {}) const;
  /// Feeds the K,V of all ranks to the engine, whose finish() then is the result.
  void travel(Forward& forward);

  /// The same for the backward. After travel() dQ and dBias are the engine's, and dK,dV of this rank are in `sums`.
  struct Backward {
    std::unique_ptr<BackwardEngine<T>> engine;
    KvExchange<T> kv;
    KvExchange<Value> sums;
  };
  [[nodiscard]] Backward begin_backward(const BackwardInputs<Input>& inputs, KvExchange<T> kv) const;
  void travel(Backward& backward);

  /// The arrays of a backward in the layout that is computed.
  struct HeadInputs {
    MaybeOwned<Input> q;
    MaybeOwned<Value> out, lse;
    MaybeOwned<Input> grad_out;
    MaybeOwned<Value> bias;

    operator BackwardInputs<Input>() const { return {q, out, lse, grad_out, bias}; }  // NOLINT: views of them
  };
  [[nodiscard]] HeadInputs to_heads(const BackwardInputs<Input>& inputs) const;

  /// Gradients as this rank holds them, of which dK,dV may be in the backward's memory.
  struct HeldGradients {
    MaybeOwned<Value> q, k, v, bias;
  };
  /// Results after travel(), as this rank holds them. Frees the engine and K,V.
  [[nodiscard]] AttentionResult<Value> finish(Forward& forward) const;
  /// \param bias_heads  of the whole bias; any without one
  [[nodiscard]] HeldGradients finish(Backward& backward, Index bias_heads) const;
  [[nodiscard]] Gradients<Value> owned(HeldGradients&& held) const;

  /// What the ring of this rank has sent so far; its all-to-alls or all-gathers; and both.
  [[nodiscard]] const TransportStatistics& hops(Channel channel) const {
    return hops_[static_cast<std::size_t>(channel)];
  }
  [[nodiscard]] TransportStatistics pieces() const;
  [[nodiscard]] TransportStatistics moved() const;

 private:
  [[nodiscard]] Ring ring() const { return shared_.grid.ring.ring(shared_.grid.rank); }
  /// K of the largest shard, in the heads of this rank.
  [[nodiscard]] ExpectedKeys expected_keys() const;
  /// The transport of a channel, of whose parcels the elements have type E.
  template <class E>
  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel) const;
  void count(Channel channel, const Transport& transport) {
    hops_[static_cast<std::size_t>(channel)] += transport.statistics();
  }
  /// Runs `send`. A failure can leave messages under way, and MPI cannot take a send back: what it may still read and fill
  /// then lives as long as the process.
  template <class Pass>
  static void keep_when_it_fails(Pass& pass, const std::function<void()>& send);

  const Device<Input, T>& device_;
  Links& links_;
  SharedAttention shared_;
  HeadLayout layout_;
  TokenRanges query_ranges_;
  Scoring scoring_;
  Shape kv_;                                 // of the heads of this rank
  std::array<TransportStatistics, 2> hops_;  // of the channels
};

}  // namespace ring_attention
