/// \file
/// `Division`: how ranks divide one attention: which heads a rank computes (`HeadLayout`), and how the K,V of all ranks come
/// to its engine (`KvWay`). `SharedAttention`: an attention that ranks divide.
///
/// A partition is a class of one of these two kinds, and a function that returns a Division: a ring (ring/kv_ring.hpp), an
/// all-gather (all_gather/all_gather.hpp), Ulysses around one of them (ulysses/ulysses.hpp).
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/maybe_owned.hpp"
#include "ring_attention/parallel/links.hpp"
#include "ring_attention/parallel/rank_grid.hpp"
#include "ring_attention/ring/parcel.hpp"

namespace ring_attention {

/// What the rows of an array belong to.
enum class Held { queries, keys, bias };

/// The heads that a rank computes, and its arrays between the layout that it holds (all heads of its tokens) and the layout
/// that it computes. Here the two are one, and every function returns the array that it is given. Where ranks share heads, the
/// functions that move an array are collective over these ranks.
class HeadLayout {
 public:
  HeadLayout(Index heads, Index kv_heads) : heads_{0, heads}, kv_heads_{0, kv_heads} {}
  HeadLayout(const HeadLayout&) = delete;
  HeadLayout& operator=(const HeadLayout&) = delete;
  virtual ~HeadLayout() = default;

  [[nodiscard]] virtual bool shares_heads() const { return false; }
  /// The heads that this rank computes.
  [[nodiscard]] virtual Interval heads() const { return heads_; }
  [[nodiscard]] virtual Interval kv_heads() const { return kv_heads_; }

  /// q, k, v, dO, the bias: from the layout that the rank holds to the one that it computes.
  [[nodiscard]] virtual MaybeOwned<float> to_heads(Held, MaybeOwned<float> x) const { return x; }
  [[nodiscard]] virtual MaybeOwned<double> to_heads(Held, MaybeOwned<double> x) const { return x; }
  [[nodiscard]] virtual MaybeOwned<Bf16> to_heads(Held, MaybeOwned<Bf16> x) const { return x; }
  [[nodiscard]] virtual MaybeOwned<Fp16> to_heads(Held, MaybeOwned<Fp16> x) const { return x; }
  /// out, lse, gradients: back. What several ranks have computed for one head is summed in the order of the ranks.
  /// \param sums  adds dK,dV where they are no plain numbers (GradientAccumulator); null: the memory of the other arrays
  [[nodiscard]] virtual MaybeOwned<float> to_sequence(Held, MaybeOwned<float> y,
                                                      [[maybe_unused]] const Memory* sums = nullptr) const {
    return y;
  }
  [[nodiscard]] virtual MaybeOwned<double> to_sequence(Held, MaybeOwned<double> y,
                                                       [[maybe_unused]] const Memory* sums = nullptr) const {
    return y;
  }

 private:
  Interval heads_, kv_heads_;
};

/// K,V of a rank in one pass, and the way on which those of all ranks come to its engine.
template <class T>
class KvWay {
 public:
  KvWay() = default;
  KvWay(const KvWay&) = delete;
  KvWay& operator=(const KvWay&) = delete;
  virtual ~KvWay() = default;

  /// What this rank owns: zeros, which the caller replaces before they travel.
  [[nodiscard]] virtual View<T> k() = 0;
  [[nodiscard]] virtual View<T> v() = 0;
  /// Allocates dK,dV for a backward: zeros. \param rows  their heads and dims; `memory` adds them
  virtual void add_sums(const KvShape& rows, const KvMemory& memory) = 0;
  /// Makes what sends: the last step before the first message. \param links  outlive the pass
  virtual void open(Links& links) = 0;
  /// Feeds the K,V of all ranks to an engine that has begun on this rank's queries. Collective.
  virtual void forward(Engine<T>& engine) = 0;
  /// And brings what each engine adds to dK,dV to their owner.
  virtual void backward(BackwardEngine<T>& engine) = 0;
  /// What the hops of a ring have sent.
  [[nodiscard]] virtual TransportStatistics hops(Channel) const { return {}; }
  /// After a backward: dK,dV of this rank. Frees everything else.
  [[nodiscard]] virtual KeyValueGradient<SumOf<T>> sums() = 0;
  /// After a failure: ends what sends. Memory stays, which messages may still read and fill.
  virtual void close() = 0;
};

struct SharedAttention;

/// Makes K,V of this rank for one pass. \param kv  of the heads that it computes; its seq is ignored
template <class T>
using MakeKv = std::unique_ptr<KvWay<T>> (*)(const SharedAttention& shared, const KvShape& kv,
                                             const Memory& memory);
using MakeKvOfAll = std::tuple<MakeKv<float>, MakeKv<double>, MakeKv<Bf16>, MakeKv<Fp16>>;

/// \tparam Way  a KvWay for each type
template <template <class> class Way, class... T>
[[nodiscard]] constexpr std::tuple<MakeKv<T>...> make_kv_of(std::tuple<MakeKv<T>...> /*types*/) {
  return {[](const SharedAttention& shared, const KvShape& kv, const Memory& memory) {
    return std::unique_ptr<KvWay<T>>(std::make_unique<Way<T>>(shared, kv, memory));
  }...};
}

/// How the ranks of a job divide one attention.
struct Division {
  const char* kv = nullptr;  ///< how K,V come to an engine: "ring", "all-gather"
  MakeKvOfAll make_kv{};
  /// How many shards of K,V a rank holds at a time beside those of a ring, of `ranks` ranks.
  int (*more_shards)(int ranks) = [](int) { return 0; };

  std::optional<int> share_heads = 1;  ///< U, the number of ranks that share heads; none: all
  /// \throws InputError when U ranks cannot share these heads
  void (*require_shareable)(Index heads, Index kv_heads, int ranks) = [](Index, Index, int) {};
  std::unique_ptr<HeadLayout> (*layout)(const SharedAttention&, Links&,
                                        const Memory&) = nullptr;  ///< null: all heads

  /// The place of a rank. \throws InputError when U does not divide the ranks
  [[nodiscard]] RankGrid grid(int rank, int ranks) const {
    require(kv != nullptr, "Division: made by ring() or by a function of partitions.hpp");
    return {rank, ranks, share_heads.value_or(ranks)};
  }
};

/// An attention that ranks share: the same on all of them, except for the rank's place in `grid`.
struct SharedAttention {
  RankGrid grid;  ///< of this rank
  Division division;
  Placements tokens;            ///< over the ranks of the ring
  Shape q;                      ///< `[batch, heads, any, dim]` of the whole attention
  KvShape kv;                   ///< `[batch, kv_heads, any, dim]` of the whole k, and the dim of v
  Scoring scoring;              ///< of all heads
  bool every_hop = false;       ///< K,V also make the hops that the mask makes unnecessary (kv_hops())
  std::optional<Shape> bias{};  ///< of all queries, if there is one. (A rank may have no row of it.)
};

}  // namespace ring_attention
