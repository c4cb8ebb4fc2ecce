// Lesson 10 between GPUs, the idea: the two all-to-alls are groups of sends and receives.
#pragma once

#include <nccl.h>

#include <algorithm>
#include <span>
#include <vector>

#include "ring_attention/core/token_range.hpp"
#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/error.hpp"

namespace ring_attention::lesson {

inline void check_nccl(ncclResult_t code) {
  require(code == ncclSuccess, std::string("NCCL: ") + ncclGetErrorString(code));
}

/// The heads that rank u of U computes. Of fewer heads than ranks, U / heads neighbours have the same one.
inline Interval heads_of(Index heads, int u, int ranks) {
  const Index first = u * heads / ranks;
  return {first, first + std::max<Index>(1, heads / ranks)};
}

/// Part of an array [1, heads, tokens, dim].
struct Block {
  Interval heads, tokens;
};

/// U ranks that share the heads of one shard of tokens. A rank holds all heads of its slice of the shard, and computes its
/// heads of the whole shard.
struct Line {
  int own, ranks;
  ncclComm_t comm;
  cuda::DeviceMemory memory;     // used in the order of its stream
  std::vector<Interval> slices;  // of each rank: local indices of the shard, which they make up in this order

  /// Of the array that this rank holds: the block that rank u computes.
  [[nodiscard]] Block held(Index heads, int u) const {
    const Interval& slice = slices[static_cast<std::size_t>(own)];
    return {heads_of(heads, u, ranks), {0, slice.end - slice.begin}};
  }
  /// Of the array that this rank computes with: the block that rank u holds.
  [[nodiscard]] Block computed(Index heads, int u) const {
    const Interval mine = heads_of(heads, own, ranks);
    return {{0, mine.end - mine.begin}, slices[static_cast<std::size_t>(u)]};
  }
};

/// Enqueues: sends block send(u) of `from` to rank u, and adds what comes from rank u to block receive(u) of `to`.
inline void all_to_all(View<const float> from, auto send, View<float> to, auto receive, const Line& line) {
  const auto for_each_head = [dim = to.shape().dim](auto array, const Block& block, auto visit) {
    const auto length = static_cast<std::size_t>((block.tokens.end - block.tokens.begin) * dim);
    for (Index head = block.heads.begin; head < block.heads.end && length > 0; ++head)
      visit(std::span(array.head(0, head) + block.tokens.begin * dim, length));
  };
  std::vector<cuda::DeviceTensor<float>> arrived;  // from each rank
  check_nccl(ncclGroupStart());                    // all at once: no message waits for another one
  for (int u = 0; u < line.ranks; ++u) {
    const auto [heads, tokens] = receive(u);
    const View<float> array =
        arrived.emplace_back(Shape{1, heads.end - heads.begin, tokens.end - tokens.begin, to.shape().dim});
    for_each_head(from, send(u), [&](auto numbers) {  // no packing: a group may have many messages
      check_nccl(ncclSend(numbers.data(), numbers.size(), ncclFloat, u, line.comm, line.memory.stream));
    });
    for_each_head(array, {{0, array.shape().heads}, {0, array.shape().seq}}, [&](auto numbers) {
      check_nccl(ncclRecv(numbers.data(), numbers.size(), ncclFloat, u, line.comm, line.memory.stream));
    });
  }
  check_nccl(ncclGroupEnd());
  for (int u = 0; u < line.ranks; ++u)  // what several ranks send for one head is summed
    for_each_head(to, receive(u), [&, next = arrived[static_cast<std::size_t>(u)].data()](auto sums) mutable {
      line.memory.add(sums, std::span(next, sums.size()));
      next += sums.size();
    });
}

/// From all heads of this rank's slice to this rank's heads of the shard.
inline cuda::DeviceTensor<float> to_heads(View<const float> x, const Line& line) {
  const auto held = [&](int u) { return line.held(x.shape().heads, u); };
  const auto computed = [&](int u) { return line.computed(x.shape().heads, u); };
  cuda::DeviceTensor<float> y({1, computed(0).heads.end, line.slices.back().end, x.shape().dim});
  all_to_all(x, held, y, computed, line);
  return y;
}

/// Back: the adjoint of to_heads, which is the same blocks the other way.
inline cuda::DeviceTensor<float> to_sequence(View<const float> y, Index heads, const Line& line) {
  const auto held = [&](int u) { return line.held(heads, u); };
  const auto computed = [&](int u) { return line.computed(heads, u); };
  cuda::DeviceTensor<float> x({1, heads, held(0).tokens.end, y.shape().dim});
  all_to_all(y, computed, x, held, line);
  return x;
}

}  // namespace ring_attention::lesson
