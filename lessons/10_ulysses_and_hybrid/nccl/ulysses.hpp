// Lesson 10 between GPUs, the idea: the two all-to-alls are groups of sends and receives.
#pragma once

#include <nccl.h>

#include <span>
#include <vector>

#include "ring_attention/core/token_range.hpp"
#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/error.hpp"

namespace ring_attention::lesson {

inline void check_nccl(ncclResult_t code) {
  require(code == ncclSuccess, std::string("NCCL: ") + ncclGetErrorString(code));
}

/// RankShare of an array [1, heads, tokens, dim].
struct Block {
  Interval heads, tokens;
};

/// U ranks that share the heads of one shard of tokens, seen by one of them.
struct UlyssesGroup {
  std::vector<Block> held;      // of all heads of its slice: block u is computed by rank u
  std::vector<Block> computed;  // of its heads of the shard: block u is held by rank u

  /// \param heads   that each rank computes (shared_heads)
  /// \param slices  that each rank holds: local indices of the shard, which they make up in this order
  UlyssesGroup(const std::vector<Interval>& heads, const std::vector<Interval>& slices, std::size_t own) {
    for (std::size_t u = 0; u < heads.size(); ++u) {
      held.push_back({heads[u], {0, slices[own].end - slices[own].begin}});
      computed.push_back({{0, heads[own].end - heads[own].begin}, slices[u]});
    }
  }
};

/// The ranks of a group, and the stream in whose order their arrays are used.
struct Nccl {
  ncclComm_t comm;
  cuda::StreamHandle stream;
};

/// Calls visit(numbers) for every head of a block: its tokens are consecutive.
void for_each_head(auto array, const Block& block, auto visit) {
  const Index dim = array.shape().dim, length = (block.tokens.end - block.tokens.begin) * dim;
  for (Index head = block.heads.begin; head < block.heads.end && length > 0; ++head)
    visit(std::span(array.head(0, head) + block.tokens.begin * dim, static_cast<std::size_t>(length)));
}

/// Enqueues: sends block u of `from` to rank u.
/// \returns the array of the blocks that arrive; what several ranks send for one head is summed
inline cuda::DeviceTensor<float> all_to_all(View<const float> from, const std::vector<Block>& send,
                                            const std::vector<Block>& receive, const Nccl& link) {
  cuda::DeviceTensor<float> to({1, receive.back().heads.end, receive.back().tokens.end, from.shape().dim});
  std::vector<cuda::DeviceTensor<float>> incoming;
  check_nccl(ncclGroupStart());  // all at once: no message waits for another one
  for (int u = 0; u < static_cast<int>(send.size()); ++u) {
    const auto& [heads, tokens] = receive[static_cast<std::size_t>(u)];
    incoming.emplace_back(Shape{1, heads.end - heads.begin, tokens.end - tokens.begin, from.shape().dim});
    for_each_head(from, send[static_cast<std::size_t>(u)], [&](auto numbers) {  // no packing: many messages
      check_nccl(ncclSend(numbers.data(), numbers.size(), ncclFloat, u, link.comm, link.stream));
    });
    for_each_head(to.view(), {heads, tokens}, [&, next = incoming.back().data()](auto numbers) mutable {
      check_nccl(ncclRecv(next, numbers.size(), ncclFloat, u, link.comm, link.stream));
      next += numbers.size();
    });
  }
  check_nccl(ncclGroupEnd());
  const cuda::DeviceMemory memory(link.stream);
  for (std::size_t u = 0; u < send.size(); ++u)  // unpack
    for_each_head(to.view(), receive[u], [&, next = incoming[u].data()](auto sums) mutable {
      memory.add(sums, std::span<const float>(next, sums.size()));
      next += sums.size();
    });
  return to;
}

/// From all heads of this rank's slice to this rank's heads of the shard.
inline cuda::DeviceTensor<float> to_heads(View<const float> x, const UlyssesGroup& group, const Nccl& link) {
  return all_to_all(x, group.held, group.computed, link);
}
/// Back: the adjoint of to_heads, which is the same blocks the other way.
inline cuda::DeviceTensor<float> to_sequence(View<const float> y, const UlyssesGroup& group,
                                             const Nccl& link) {
  return all_to_all(y, group.computed, group.held, link);
}

}  // namespace ring_attention::lesson
