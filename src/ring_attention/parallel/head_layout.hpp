/// \file
/// `HeadLayout`: the arrays of a rank between the layout that it holds and the layout that it computes.
#pragma once

#include <optional>

#include "ring_attention/core/maybe_owned.hpp"
#include "ring_attention/parallel/heads.hpp"
#include "ring_attention/parallel/rank_grid.hpp"
#include "ring_attention/parallel/ulysses.hpp"

namespace ring_attention {

/// A rank holds all heads of its slice and computes some heads of the whole shard (RankGrid, HeadShare). Where no other
/// rank shares its heads, both layouts are the same, and every function returns the array that it is given.
///
/// All functions that move an array are collective over the group of Ulysses.
class HeadLayout {
 public:
  /// \param group  along grid.ulysses; it moves pieces in `memory`. Both outlive this object
  /// \param tokens  over the ranks of the ring
  /// \param bias    of the whole attention
  /// \throws InputError when the ranks cannot share these heads (HeadShare)
  HeadLayout(AllToAll& group, const RankGrid& grid, const Placements& tokens, Index query_heads,
             Index kv_heads, const Memory& memory = host_memory(), const std::optional<Shape>& bias = {})
      : group_(group),
        memory_(memory),
        own_(static_cast<std::size_t>(grid.ulysses.index(grid.rank))),
        share_(query_heads, kv_heads, grid.ulysses.size),
        query_tokens_(grid.tokens(tokens.queries)),
        key_tokens_(grid.tokens(tokens.keys)) {
    if (bias) bias_heads_ = bias->heads == 1 ? all_heads(1, grid.ulysses.size) : share_.query;
  }

  [[nodiscard]] bool shares_heads() const { return share_.query.size() > 1; }
  /// The heads that this rank computes.
  [[nodiscard]] const Interval& heads() const { return share_.query[own_]; }
  [[nodiscard]] const Interval& kv_heads() const { return share_.kv[own_]; }

  /// q, dO: from the slice with all heads to the shard with the heads of this rank.
  template <class T>
  [[nodiscard]] MaybeOwned<T> queries_to_heads(MaybeOwned<T> x) const {
    return to_heads(std::move(x), share_.query, query_tokens_);
  }
  /// k, v: likewise.
  template <class T>
  [[nodiscard]] MaybeOwned<T> keys_to_heads(MaybeOwned<T> x) const {
    return to_heads(std::move(x), share_.kv, key_tokens_);
  }
  /// The bias, if there is one: likewise. One that broadcasts over heads goes to every rank.
  template <class T>
  [[nodiscard]] MaybeOwned<T> bias_to_heads(MaybeOwned<T> x) const {
    return bias_heads_.empty() ? std::move(x) : to_heads(std::move(x), bias_heads_, query_tokens_);
  }

  /// out, lse, dQ: back.
  template <class T>
  [[nodiscard]] MaybeOwned<T> queries_to_sequence(MaybeOwned<T> y) const {
    return to_sequence(std::move(y), share_.query, query_tokens_);
  }
  /// dK, dV: back. A head of several ranks is the sum of theirs, in the order of the ranks. \param memory  adds them
  template <class T>
  [[nodiscard]] MaybeOwned<T> keys_to_sequence(MaybeOwned<T> y, const Memory& memory) const {
    if (!shares_heads()) return y;
    return ring_attention::to_sequence(group_, y.view(), share_.kv, key_tokens_, memory);
  }
  template <class T>
  [[nodiscard]] MaybeOwned<T> keys_to_sequence(MaybeOwned<T> y) const {
    return keys_to_sequence<T>(std::move(y), memory_);
  }
  /// The gradient of the bias, back: the sum over the ranks where it broadcasts over heads.
  template <class T>
  [[nodiscard]] MaybeOwned<T> bias_to_sequence(MaybeOwned<T> y) const {
    return bias_heads_.empty() ? std::move(y) : to_sequence(std::move(y), bias_heads_, query_tokens_);
  }

 private:
  using Heads = std::vector<Interval>;

  template <class T>
  [[nodiscard]] MaybeOwned<T> to_heads(MaybeOwned<T> x, const Heads& heads,
                                       const std::vector<Index>& tokens) const {
    if (!shares_heads()) return x;
    return ring_attention::to_heads(group_, x.view(), heads, tokens, memory_);
  }
  template <class T>
  [[nodiscard]] MaybeOwned<T> to_sequence(MaybeOwned<T> y, const Heads& heads,
                                          const std::vector<Index>& tokens) const {
    if (!shares_heads()) return y;
    return ring_attention::to_sequence(group_, y.view(), heads, tokens, memory_);
  }

  AllToAll& group_;
  const Memory& memory_;
  std::size_t own_;
  HeadShare share_;
  Heads bias_heads_;  // of each rank; none without a bias
  std::vector<Index> query_tokens_, key_tokens_;
};

}  // namespace ring_attention
