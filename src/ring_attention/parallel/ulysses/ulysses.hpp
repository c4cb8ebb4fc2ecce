/// \file
/// Ulysses, alone or around a ring: ranks share the heads. An all-to-all brings a rank whole shards of its heads, which it
/// computes as if there were no other heads.
#pragma once

#include <optional>
#include <vector>

#include "ring_attention/parallel/collectives/heads_exchange.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/ulysses/heads.hpp"

namespace ring_attention {

/// A rank holds all heads of its slice and computes some heads of the whole shard (RankGrid, shared_heads).
class UlyssesLayout : public HeadLayout {
 public:
  /// \param group  along grid.ulysses; it moves pieces in `memory`. Both outlive this object
  /// \param tokens  over the ranks of the ring
  /// \param bias    of the whole attention
  /// \throws InputError when the ranks cannot share these heads (require_shareable)
  UlyssesLayout(AllToAll& group, const RankGrid& grid, const Placements& tokens, Index query_heads,
                Index kv_heads, const Memory& memory = host_memory(), const std::optional<Shape>& bias = {})
      : HeadLayout(query_heads, kv_heads),
        group_(group),
        memory_(memory),
        own_(static_cast<std::size_t>(grid.ulysses.index(grid.rank))),
        heads_of_queries_(shared_heads(query_heads, grid.ulysses.size)),
        heads_of_keys_(shared_heads(kv_heads, grid.ulysses.size)),
        query_tokens_(grid.tokens(tokens.queries)),
        key_tokens_(grid.tokens(tokens.keys)) {
    require_shareable(query_heads, kv_heads, grid.ulysses.size);
    if (bias) heads_of_bias_ = shared_heads(bias->heads, grid.ulysses.size);
  }

  [[nodiscard]] bool shares_heads() const override { return true; }
  [[nodiscard]] Interval heads() const override { return heads_of_queries_[own_]; }
  [[nodiscard]] Interval kv_heads() const override { return heads_of_keys_[own_]; }
  /// A bias that broadcasts over heads goes to every rank.
  [[nodiscard]] MaybeOwned<float> to_heads(Held what, MaybeOwned<float> x) const override {
    return moved_to_heads(what, std::move(x));
  }
  [[nodiscard]] MaybeOwned<double> to_heads(Held what, MaybeOwned<double> x) const override {
    return moved_to_heads(what, std::move(x));
  }
  [[nodiscard]] MaybeOwned<Bf16> to_heads(Held what, MaybeOwned<Bf16> x) const override {
    return moved_to_heads(what, std::move(x));
  }
  [[nodiscard]] MaybeOwned<Fp16> to_heads(Held what, MaybeOwned<Fp16> x) const override {
    return moved_to_heads(what, std::move(x));
  }
  /// A KV head that several ranks have is the sum of theirs; so is a bias that broadcasts over heads.
  [[nodiscard]] MaybeOwned<float> to_sequence(Held what, MaybeOwned<float> y,
                                              const Memory* sums = nullptr) const override {
    return moved_to_sequence(what, std::move(y), sums);
  }
  [[nodiscard]] MaybeOwned<double> to_sequence(Held what, MaybeOwned<double> y,
                                               const Memory* sums = nullptr) const override {
    return moved_to_sequence(what, std::move(y), sums);
  }

 private:
  template <class T>
  [[nodiscard]] MaybeOwned<T> moved_to_heads(Held what, MaybeOwned<T> x) const {
    if (heads_of(what).empty()) return x;
    return ring_attention::to_heads(group_, x.view(), heads_of(what), tokens_of(what), memory_);
  }
  template <class T>
  [[nodiscard]] MaybeOwned<T> moved_to_sequence(Held what, MaybeOwned<T> y, const Memory* sums) const {
    if (heads_of(what).empty()) return y;
    return ring_attention::to_sequence(group_, y.view(), heads_of(what), tokens_of(what),
                                       sums == nullptr ? memory_ : *sums);
  }
  /// The heads of each rank.
  [[nodiscard]] const std::vector<Interval>& heads_of(Held what) const {
    return what == Held::queries ? heads_of_queries_ : what == Held::keys ? heads_of_keys_ : heads_of_bias_;
  }
  [[nodiscard]] const std::vector<Index>& tokens_of(Held what) const {
    return what == Held::keys ? key_tokens_ : query_tokens_;
  }

  AllToAll& group_;
  const Memory& memory_;
  std::size_t own_;
  std::vector<Interval> heads_of_queries_, heads_of_keys_;  // of each rank
  std::vector<Interval> heads_of_bias_;                     // likewise; none without a bias
  std::vector<Index> query_tokens_, key_tokens_;
};

/// U ranks share the heads, and the ranks that have the same heads are a ring. \param share_heads  U; none: all ranks
[[nodiscard]] inline Division hybrid(std::optional<int> share_heads) {
  Division division = ring();
  division.share_heads = share_heads;
  division.require_shareable = require_shareable;
  division.layout = [](const SharedAttention& all, Links& links,
                       const Memory& memory) -> std::unique_ptr<HeadLayout> {
    if (all.grid.ulysses.size == 1) return nullptr;
    return std::make_unique<UlyssesLayout>(links.ulysses(), all.grid, all.tokens, all.q.heads, all.kv.heads,
                                           memory, all.bias);
  };
  return division;
}
/// All ranks share the heads: each computes all tokens of some heads.
[[nodiscard]] inline Division ulysses() { return hybrid(std::nullopt); }

}  // namespace ring_attention
