// Lesson 10, the idea: an all-to-all gives each rank all tokens of some heads, and another one brings the results back.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention::lesson {

/// The heads that rank u of U computes. Of fewer heads than ranks, U / heads neighbours have the same one.
inline Interval heads_of(Index heads, int u, int ranks) {
  // Exercise: rank u has block u of the heads, all blocks of one length. Where there are fewer heads than ranks, one head:
  // rank 0 the first, the last rank the last, neighbours the same one.
  still_empty("heads");
}

/// Part of an array [1, heads, tokens, dim].
struct Block {
  Interval heads, tokens;
};

/// U ranks that share the heads of one shard of tokens. A rank holds all heads of its slice of the shard, and computes its
/// heads of the whole shard.
struct Line {
  const Communicator& comm;
  std::vector<Interval> slices;  // of each rank: local indices of the shard, which they make up in this order

  /// Of the array that this rank holds: the block that rank u computes.
  [[nodiscard]] Block held(Index heads, int u) const {
    const Interval& own = slices[static_cast<std::size_t>(comm.rank())];
    return {heads_of(heads, u, comm.size()), {0, own.end - own.begin}};
  }
  /// Of the array that this rank computes with: the block that rank u holds.
  [[nodiscard]] Block computed(Index heads, int u) const {
    // Exercise: which heads and tokens of this rank's array [1, own heads, tokens of the shard, dim] are those that rank u
    // has in its array [1, all heads, tokens of its slice, dim]?
    still_empty("computed");
  }
};

/// Sends block send(u) of `from` to rank u, and adds what comes from rank u to block receive(u) of `to`.
inline void all_to_all(View<const float> from, auto send, View<float> to, auto receive,
                       const Communicator& comm) {
  const auto for_each_row = [](auto array, const Block& block, auto visit) {
    for (Index head = block.heads.begin; head < block.heads.end; ++head)
      for (Index token = block.tokens.begin; token < block.tokens.end; ++token)
        visit(array.row(0, head, token));
  };
  std::vector<float> outgoing, incoming;
  std::vector<int> sent, received, sent_at, received_at;  // lengths of the messages, and where they begin
  for (int u = 0; u < comm.size(); ++u) {                 // pack
    sent_at.push_back(static_cast<int>(outgoing.size()));
    received_at.push_back(static_cast<int>(incoming.size()));
    // Exercise: append the block for rank u to `outgoing`, row by row. for_each_row(array, block, visit) calls visit(row) with
    // a std::span of the numbers of a head and a token.
    still_empty("pack");
    for_each_row(to, receive(u), [&](auto row) { incoming.resize(incoming.size() + row.size()); });
    sent.push_back(static_cast<int>(outgoing.size()) - sent_at.back());
    received.push_back(static_cast<int>(incoming.size()) - received_at.back());
  }
  // Exercise: one call of MPI_Alltoallv. Its arguments: what is sent, the lengths and the begins of the messages, their type;
  // the same for what is received; the communicator.
  still_empty("all-to-all");
  auto next = incoming.begin();
  for (int u = 0; u < comm.size(); ++u)  // unpack; what several ranks send for one head is summed
    for_each_row(to, receive(u), [&](auto row) {
      // Exercise: add the numbers that have arrived, from `next` on, to this row.
      still_empty("unpack");
      next += std::ssize(row);
    });
}

/// From all heads of this rank's slice to this rank's heads of the shard.
inline Tensor<float> to_heads(View<const float> x, const Line& line) {
  const auto held = [&](int u) { return line.held(x.shape().heads, u); };
  const auto computed = [&](int u) { return line.computed(x.shape().heads, u); };
  Tensor<float> y({1, computed(0).heads.end, line.slices.back().end, x.shape().dim});
  all_to_all(x, held, y, computed, line.comm);
  return y;
}

/// Back: the adjoint of to_heads, which is the same blocks the other way.
inline Tensor<float> to_sequence(View<const float> y, Index heads, const Line& line) {
  const auto held = [&](int u) { return line.held(heads, u); };
  const auto computed = [&](int u) { return line.computed(heads, u); };
  Tensor<float> x({1, heads, held(0).tokens.end, y.shape().dim});
  // Exercise: one call of all_to_all. to_heads is the model.
  still_empty("back");
  return x;
}

/// Attention of this rank's slice, all heads.
///
/// \param attend  attention of the whole shard for the heads that it is given: an engine, or a ring of shards. A head needs
///   no other head. The backward needs the arrays of these heads, so `attend` may keep them
inline AttentionResult<float> ulysses(View<const float> q, View<const float> k, View<const float> v,
                                      const Line& line, auto attend) {
  Tensor<float> own_q = to_heads(q, line), own_k = to_heads(k, line), own_v = to_heads(v, line);
  const AttentionResult<float>& own = attend(std::move(own_q), std::move(own_k), std::move(own_v));
  return {to_sequence(own.out, q.shape().heads, line), to_sequence(own.lse, q.shape().heads, line)};
}

}  // namespace ring_attention::lesson
