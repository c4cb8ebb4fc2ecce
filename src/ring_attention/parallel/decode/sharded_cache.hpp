/// \file
/// `ShardedCache`: the keys and values of a sequence that grows, sharded over ranks.
#pragma once

#include <optional>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/ring/placement.hpp"

namespace ring_attention {

/// One rank's part of the cache: its part of a prompt, in any placement, and tokens that are appended one at a time.
///
/// The token at position p goes to rank p mod N and lies behind what that rank holds. No key moves, because an engine
/// takes positions and does not ask for an order of memory. The new tokens of a rank are one token range of stride N,
/// so all ranks grow at the same rate. For the same bits on any number of ranks (Tiling) tile t goes to rank t mod N, and what
/// is left of the prompt's last tile to the rank that has its beginning.
///
/// Memory: batch * kv_heads * own_capacity() * (dim + value_dim) elements, allocated by the constructor.
template <class T>
class ShardedCache {
 public:
  /// \param capacity  tokens of the longest sequence, over all ranks
  /// \param prompt    which rank holds which tokens of the prompt; it may have none
  /// \param k, v      this rank's tokens of the prompt, `[batch, kv_heads, tokens, dim]` (v: value_dim); copied
  /// \throws InputError when the prompt is longer than the capacity; Error when k and v are not this rank's tokens
  /// \param tiling  that of the prompt's placement, or none
  ShardedCache(Index capacity, const Placement& prompt, int rank, View<const T> k, View<const T> v,
               const std::optional<Tiling>& tiling = {});

  /// The next token, at position size(), `[batch, kv_heads, 1, dim]` (v: value_dim). All ranks call; one of them keeps it.
  /// \returns whether this rank keeps it
  /// \throws Error for another shape, or when size() is capacity()
  bool append(View<const T> k, View<const T> v);

  /// Tokens of all ranks: now, and at most.
  [[nodiscard]] Index size() const { return size_; }
  [[nodiscard]] Index capacity() const { return capacity_; }
  /// Tokens of this rank, at most.
  [[nodiscard]] Index own_capacity() const { return k_.shape().seq; }
  /// Where the tokens of this rank are in the sequence, in the order of its memory.
  [[nodiscard]] TokenRanges ranges() const;
  /// `[batch, kv_heads, tokens of this rank, dim]`, and the columns of v.
  [[nodiscard]] KvShape shape() const { return {k_.shape().with_seq(count(ranges())), v_.shape().dim}; }

  /// Some adjacent tokens of one head, `[1, 1, tokens.count, dim]` (v: value_dim): what an engine for that head takes.
  /// \param first  index of the first of them in this rank's memory
  [[nodiscard]] KeyValue<T> keys(Index batch, Index head, Index first, const TokenRange& tokens) const {
    const KvShape some({1, 1, tokens.count, k_.shape().dim}, v_.shape().dim);
    return {{k_.view().row(batch, head, first).data(), some},
            {v_.view().row(batch, head, first).data(), some.values()},
            {tokens}};
  }

 private:
  void store(View<const T> k, View<const T> v, Index first);

  Index capacity_, size_;
  TokenRanges prompt_;  // of this rank
  TokenRanges next_;    // what this rank comes to hold behind the prompt
  Tensor<T> k_, v_;     // [batch, kv_heads, own_capacity(), dim], and value_dim columns
};

extern template class ShardedCache<float>;
extern template class ShardedCache<double>;

}  // namespace ring_attention
