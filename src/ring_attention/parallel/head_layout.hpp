/// \file
/// `HeadLayout`: the arrays of a rank between the layout that it holds and the layout that it computes.
#pragma once

#include <optional>

#include "ring_attention/attention/terms.hpp"
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
  /// \param terms   of the whole attention
  /// \throws InputError when the ranks cannot share these heads (HeadShare)
  HeadLayout(AllToAll& group, const RankGrid& grid, const Placements& tokens, Index query_heads,
             Index kv_heads, const Memory& memory = host_memory(), const TermShapes& terms = {})
      : group_(group),
        memory_(memory),
        own_(static_cast<std::size_t>(grid.ulysses.index(grid.rank))),
        share_(query_heads, kv_heads, grid.ulysses.size),
        query_tokens_(grid.tokens(tokens.queries)),
        key_tokens_(grid.tokens(tokens.keys)) {
    term_heads_ = each_term(
        [&](const std::optional<Shape>& term) {
          return !term ? Heads() : term->heads == 1 ? all_heads(1, grid.ulysses.size) : share_.query;
        },
        terms);
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
  /// The arrays of terms: likewise, those that there are. An array that broadcasts over heads goes to every rank.
  template <class T>
  [[nodiscard]] TermArrays<MaybeOwned<T>> terms_to_heads(TermArrays<MaybeOwned<T>> x) const {
    return each_term(
        [&](MaybeOwned<T>&& array, const Heads& heads) {
          return heads.empty() ? std::move(array) : to_heads(std::move(array), heads, query_tokens_);
        },
        std::move(x), term_heads_);
  }
  template <class T>
  [[nodiscard]] TermArrays<MaybeOwned<T>> terms_to_heads(const Terms<T>& x) const {
    return terms_to_heads(each_term([](const View<const T>& array) { return MaybeOwned<T>(array); }, x));
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
  /// The gradients of arrays of terms, back: the sum over the ranks where an array broadcasts over heads.
  template <class T>
  [[nodiscard]] TermArrays<MaybeOwned<T>> terms_to_sequence(TermArrays<Tensor<T>>&& y) const {
    return each_term(
        [&](Tensor<T>&& array, const Heads& heads) -> MaybeOwned<T> {
          if (heads.empty()) return std::move(array);
          return to_sequence<T>(std::move(array), heads, query_tokens_);
        },
        std::move(y), term_heads_);
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
  TermArrays<Heads> term_heads_;  // of each rank; none without the term
  std::vector<Index> query_tokens_, key_tokens_;
};

}  // namespace ring_attention
