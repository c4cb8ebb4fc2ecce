/// \file
/// `ContextParallel`: an attention whose tokens and heads several ranks share: the one place that composes layout,
/// placement, engine and messages, forward and backward, for every partition and every device.
///
/// A rank brings its arrays to the layout that it computes (HeadLayout), writes K,V to where messages take them
/// (KvStorage), lets an engine of its Device begin on its queries, feeds it the K,V of all ranks over its Links, and brings
/// the results back. The partitions differ in two of these: the layout, and how K,V get to the other ranks.
///
/// A plain ring, in which no ranks share heads, runs placement.hpp, parcel.hpp, forward.hpp or backward.hpp and a transport
/// (all of ring/), and an engine. It never enters head_layout.hpp and ulysses.hpp, which return what they are given; heads.hpp,
/// with all heads on each rank; all_gather.hpp and all_to_all.hpp; and term_gradients.hpp without sinks. Who observes it
/// makes an ObservedContextParallel (observed.hpp).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ring_attention/attention/views.hpp"
#include "ring_attention/parallel/collectives/all_gather.hpp"
#include "ring_attention/parallel/device.hpp"
#include "ring_attention/parallel/head_layout.hpp"
#include "ring_attention/parallel/links.hpp"
#include "ring_attention/parallel/rank_grid.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/kv_hops.hpp"
#include "ring_attention/ring/parcel.hpp"

namespace ring_attention {

/// An attention that ranks share: the same on all of them, except for the rank's place in `grid`.
struct SharedAttention {
  RankGrid grid;                ///< of this rank
  bool all_gathers_kv = false;  ///< all-gather K,V over the ranks of the ring; no rank shares heads then
  Placements tokens;            ///< over the ranks of the ring
  Shape q;                      ///< `[batch, heads, any, dim]` of the whole attention
  KvShape kv;                   ///< `[batch, kv_heads, any, dim]` of the whole k, and the dim of v
  Scoring scoring;              ///< of all heads
  bool every_hop = false;       ///< K,V also make the hops that the mask makes unnecessary (kv_hops())
  std::optional<Shape> bias{};  ///< of all queries, if there is one. (A rank may have no row of it.)
};

/// Runs a step of the preparation, which may throw, on all ranks: a collective call may agree on its failure.
using CollectiveStep = std::function<void(const std::function<void()>& step)>;
inline void on_this_rank(const std::function<void()>& step) { step(); }

/// A parcel for a ring, or the shards of all ranks for an all-gather. Zeros at first.
template <class T>
struct KvStorage {
  std::optional<KvParcel<T>> parcel;  ///< of a ring
  std::optional<KvShards<T>> shards;  ///< of an all-gather

  /// \param kv    its seq is ignored
  /// \param hops  of the parcels in a ring (kv_hops()); none given: all
  KvStorage(bool all_gathers_kv, const KvShape& kv, const Placement& keys, int rank,
            const KvMemory& memory = host_memory(), std::vector<int> hops = {})
      : rank_(rank) {
    if (all_gathers_kv)
      shards.emplace(kv, keys, memory);
    else
      parcel.emplace(kv, keys, rank, memory, std::move(hops));
  }

  /// What this rank owns: K,V until they travel, and dK,dV in the end.
  [[nodiscard]] View<T> k() { return shards ? shards->k(rank_) : parcel->k(); }
  [[nodiscard]] View<T> v() { return shards ? shards->v(rank_) : parcel->v(); }

  /// After the last message: frees what belongs to other ranks.
  void keep_own() {
    if (parcel) parcel->free_buffers();
    if (shards) shards->free_others(rank_);
  }
  /// Frees all memory.
  void release() {
    parcel.reset();
    shards.reset();
  }

 private:
  int rank_;
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

  /// \param bias      the rows of this rank's queries; empty where SharedAttention has none
  /// \param collectively  runs the step that allocates, before the first message of a ring or an all-gather
  [[nodiscard]] AttentionResult<Value> forward(View<const Input> q, View<const Input> k, View<const Input> v,
                                               View<const Value> bias = {},
                                               const CollectiveStep& collectively = on_this_rank);
  /// The gradients of q, k, v and of the bias; complete() of term_gradients.hpp adds the others.
  [[nodiscard]] Gradients<Value> backward(const BackwardInputs<Input>& inputs, View<const Input> k,
                                          View<const Input> v,
                                          const CollectiveStep& collectively = on_this_rank);
  /// Forward and backward that write to where the caller wants the results; the backward returns the gradients of numbers.
  void forward(View<const Input> q, View<const Input> k, View<const Input> v, View<const Value> bias,
               const CollectiveStep& collectively, const ResultViews<Value>& to);
  TermNumbers backward(const BackwardInputs<Input>& inputs, View<const Input> k, View<const Input> v,
                       const CollectiveStep& collectively, const GradientViews<Value>& to);

  // ---- the same in steps: arrays in the layout that is computed ------------------------------------------

  [[nodiscard]] const SharedAttention& shared() const { return shared_; }
  [[nodiscard]] const HeadLayout& layout() const { return layout_; }

  /// Zeros where K,V of this rank belong before they travel.
  [[nodiscard]] KvStorage<T> empty_kv() const;
  /// K,V of this rank, copied to where messages take them.
  [[nodiscard]] KvStorage<T> kv(View<const Input> k, View<const Input> v) const;

  /// A forward that has begun: its memory is allocated, and nothing is sent. The arrays stay with the caller.
  struct Forward {
    std::unique_ptr<Engine<T>> engine;
    KvStorage<T> kv;
    std::unique_ptr<Transport> transport;  // of a ring; borrows kv
  };
  [[nodiscard]] Forward begin_forward(View<const Input> q, KvStorage<T> kv, View<const Value> bias = {});
  /// Feeds the K,V of all ranks to the engine, whose finish() then is the result.
  void travel(Forward& forward);

  /// A backward that has begun. After travel() the engine has dQ and the gradient of the bias, and `sums` has dK,dV of this
  /// rank.
  struct Backward {
    std::unique_ptr<BackwardEngine<T>> engine;
    KvStorage<T> kv;
    KvStorage<Value> sums;
    std::unique_ptr<Transport> kv_transport, sums_transport;
  };
  [[nodiscard]] Backward begin_backward(const BackwardInputs<Input>& inputs, KvStorage<T> kv);
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

  /// What this rank has sent: over its ring, by its all-to-alls or all-gathers, and in all.
  [[nodiscard]] const TransportStatistics& hops(Channel channel) const {
    return hops_[static_cast<std::size_t>(channel)];
  }
  [[nodiscard]] TransportStatistics collective_statistics() const;
  [[nodiscard]] TransportStatistics statistics() const;

 private:
  /// A backward of arrays as this rank holds them, after travel().
  [[nodiscard]] Backward travelled(const BackwardInputs<Input>& inputs, View<const Input> k,
                                   View<const Input> v, const CollectiveStep& collectively);
  /// \throws Error unless the bias has the rows of the queries that this rank computes, or there is none
  void require_rows(View<const Value> bias) const;
  [[nodiscard]] Ring ring() const { return shared_.grid.ring.ring(shared_.grid.rank); }
  /// K,V of the largest shard, in the heads of this rank.
  [[nodiscard]] ExpectedKeys expected_keys() const;
  /// The transport of a ring, of whose parcels the elements have type E; none for an all-gather.
  template <class E>
  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, const KvShape& parcel);
  /// dK or dV after the last hop, as this rank holds them.
  [[nodiscard]] MaybeOwned<Value> held_sums(View<const Value> sums, const GradientAccumulator& how) const;
  [[nodiscard]] GradientAccumulator accumulator(Index dim) const;
  void count(Channel channel, const Transport& transport) {
    hops_[static_cast<std::size_t>(channel)] += transport.statistics();
  }

  const Device<Input, T>& device_;
  Links& links_;
  SharedAttention shared_;
  HeadLayout layout_;
  TokenRanges query_ranges_;
  Scoring scoring_;
  KvShape kv_;                               // of the heads of this rank
  GradientAccumulator sums_k_, sums_v_;      // of its dK and dV
  std::array<TransportStatistics, 2> hops_;  // of the channels
};

}  // namespace ring_attention
