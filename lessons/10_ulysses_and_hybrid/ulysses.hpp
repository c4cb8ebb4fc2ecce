// Lesson 10, the idea: an all-to-all gives each rank all tokens of some heads, and another one brings the results back.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"

namespace ring_attention::lesson {

/// RankShare of an array [1, heads, tokens, dim].
struct Block {
  Interval heads, tokens;
};

/// U ranks that share the heads of one shard of tokens, seen by one of them.
struct UlyssesGroup {
  std::vector<Block> held;      // of all heads of its slice: block u is computed by rank u
  std::vector<Block> computed;  // of its heads of the shard: block u is held by rank u

  /// \param heads   that each rank computes (shared_heads), counted over all; in its own array they begin at 0
  /// \param slices  that each rank holds: local indices of the shard, which they make up in this order
  UlyssesGroup(const std::vector<Interval>& heads, const std::vector<Interval>& slices, std::size_t own) {
    for (std::size_t u = 0; u < heads.size(); ++u) {
      held.push_back({heads[u], {0, slices[own].end - slices[own].begin}});
      computed.push_back({{0, heads[own].end - heads[own].begin}, slices[u]});
    }
  }
};

/// Calls visit(number) for every number of a block.
void for_each_number(auto array, const Block& block, auto visit) {
  require(block.heads.end <= array.shape().heads && block.tokens.end <= array.shape().seq,
          "a block ends after head " + std::to_string(block.heads.end - 1) + " or token " +
              std::to_string(block.tokens.end - 1) + ", and the array does not have these");
  for (Index head = block.heads.begin; head < block.heads.end; ++head)
    for (Index token = block.tokens.begin; token < block.tokens.end; ++token)
      for (auto& number : array.row(0, head, token)) visit(number);
}

/// Sends block u of `from` to rank u.
/// \returns the array of the blocks that arrive; what several ranks send for one head is summed
inline Tensor<float> all_to_all(View<const float> from, const std::vector<Block>& send,
                                const std::vector<Block>& receive, AllToAll& link) {
  Tensor<float> to({1, receive.back().heads.end, receive.back().tokens.end, from.shape().dim});
  std::vector<std::vector<float>> outgoing(send.size()), incoming(send.size());
  Pieces pieces;
  for (std::size_t u = 0; u < send.size(); ++u) {
    for_each_number(from, send[u], [&](float number) { outgoing[u].push_back(number); });  // pack
    for_each_number(to.view(), receive[u], [&](float) { incoming[u].push_back(0); });
    pieces.send.push_back(std::as_bytes(std::span(outgoing[u])));
    pieces.receive.push_back(std::as_writable_bytes(std::span(incoming[u])));
  }
  link.all_to_all(pieces);
  for (std::size_t u = 0; u < send.size(); ++u)  // unpack
    for_each_number(to.view(), receive[u],
                    [next = incoming[u].begin()](float& sum) mutable { sum += *next++; });
  return to;
}

/// From all heads of this rank's slice to this rank's heads of the shard.
inline Tensor<float> to_heads(View<const float> x, const UlyssesGroup& group, AllToAll& link) {
  return all_to_all(x, group.held, group.computed, link);
}
/// Back: the adjoint of to_heads, which is the same blocks the other way.
inline Tensor<float> to_sequence(View<const float> y, const UlyssesGroup& group, AllToAll& link) {
  return all_to_all(y, group.computed, group.held, link);
}

/// Attention of this rank's slice, all heads.
///
/// \param attend  attention of the whole shard for the heads that it is given: an engine, or a ring of shards. A head
///   needs no other head. The backward needs the arrays of these heads, so `attend` may keep them
inline AttentionResult<float> ulysses(View<const float> q, View<const float> k, View<const float> v,
                                      const UlyssesGroup& queries, const UlyssesGroup& keys, AllToAll& link,
                                      auto attend) {
  auto own_q = to_heads(q, queries, link), own_k = to_heads(k, keys, link), own_v = to_heads(v, keys, link);
  const AttentionResult<float>& own = attend(std::move(own_q), std::move(own_k), std::move(own_v));
  return {to_sequence(own.out, queries, link), to_sequence(own.lse, queries, link)};
}

}  // namespace ring_attention::lesson
