/// \file
/// `HeadLayout`: the arrays of a rank between the layout that it holds and the layout that it computes.
#pragma once

#include "ring_attention/attention/mask.hpp"
#include "ring_attention/parallel/heads.hpp"
#include "ring_attention/parallel/hybrid.hpp"
#include "ring_attention/parallel/ulysses.hpp"

namespace ring_attention {

/// A rank holds all heads of its slice and computes some heads of the whole shard (HybridPlace, HeadShare). Its engine
/// has scoring(), begins on queries_to_heads(q), and takes K,V from a ring along place.ring, each of whose ranks gives
/// keys_to_heads(k) and keys_to_heads(v). The results go back by queries_to_sequence() and keys_to_sequence().
///
/// All functions that move an array are collective over the line of Ulysses.
/// \tparam Memory  of the arrays (host_memory.hpp); the link moves pieces there
template <AllToAll Link, class Memory = HostMemory>
class HeadLayout {
  template <class T>
  using Array = typename Memory::template Array<T>;

 public:
  /// \param link  of the line along place.ulysses; outlives this object
  /// \param queries, keys  over the ranks of the ring
  /// \throws InputError when the ranks cannot share these heads (HeadShare)
  HeadLayout(Link& link, const HybridPlace& place, const Placement& queries, const Placement& keys,
             Index query_heads, Index kv_heads, const Memory& memory = {})
      : link_(link),
        memory_(memory),
        share_(query_heads, kv_heads, place.ulysses.size),
        query_tokens_(place.tokens(queries)),
        key_tokens_(place.tokens(keys)) {}

  /// The query heads that this rank computes.
  [[nodiscard]] const Interval& heads() const { return share_.query[static_cast<std::size_t>(link_.rank())]; }
  /// The scoring of these heads.
  [[nodiscard]] Scoring scoring(const Scoring& all) const { return all.of_heads(heads()); }
  /// Numbers of these heads, such as gradients of sinks, among those of all heads: 0 elsewhere, so ranks add up.
  [[nodiscard]] std::vector<double> among_all(const std::vector<double>& own) const {
    if (own.empty()) return {};
    std::vector<double> all(static_cast<std::size_t>(share_.query.back().end));
    std::ranges::copy(own, all.begin() + heads().begin);
    return all;
  }

  /// q, dO: `[batch, heads, tokens of the slice, dim]` to `[batch, own heads, tokens of the shard, dim]`.
  template <class T>
  [[nodiscard]] Array<T> queries_to_heads(View<const T> x) const {
    return to_heads(link_, x, share_.query, query_tokens_, memory_);
  }
  /// The same for k, v.
  template <class T>
  [[nodiscard]] Array<T> keys_to_heads(View<const T> x) const {
    return to_heads(link_, x, share_.kv, key_tokens_, memory_);
  }
  /// The same for a bias (bias.hpp). One that broadcasts over heads goes to every rank.
  template <class T>
  [[nodiscard]] Array<T> bias_to_heads(View<const T> x) const {
    return to_heads(link_, x, bias_heads(x.shape().heads), query_tokens_, memory_);
  }

  /// out, lse, dQ: back.
  template <class T>
  [[nodiscard]] Array<T> queries_to_sequence(View<const T> y) const {
    return to_sequence(link_, y, share_.query, query_tokens_, memory_);
  }
  /// dK, dV: back. A head of several ranks is the sum of theirs, in the order of the ranks.
  template <class T>
  [[nodiscard]] Array<T> keys_to_sequence(View<const T> y) const {
    return to_sequence(link_, y, share_.kv, key_tokens_, memory_);
  }
  /// The gradient of a bias, back. \param heads  1, where the bias broadcasts over heads: the sum over the ranks
  template <class T>
  [[nodiscard]] Array<T> bias_to_sequence(View<const T> y, Index heads) const {
    return to_sequence(link_, y, bias_heads(heads), query_tokens_, memory_);
  }

 private:
  [[nodiscard]] std::vector<Interval> bias_heads(Index heads) const {
    return heads == 1 ? all_heads(1, link_.size()) : share_.query;
  }

  Link& link_;
  Memory memory_;
  HeadShare share_;
  std::vector<Index> query_tokens_, key_tokens_;
};

}  // namespace ring_attention
