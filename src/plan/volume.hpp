/// \file
/// How many bytes a rank sends for one layer, with each way to cut it.
///
/// Derivations: docs/parallelism.md and the headers of ring/ and parallel/.
#pragma once

#include "ring_attention/core/shape.hpp"

namespace ring_attention::plan {

inline constexpr double float_bytes = 4;  // of lse, sums and gradients

/// Attention of one layer over N ranks that share a sequence.
struct Attention {
  double batch = 1;
  double tokens = 0;  ///< of a rank: S / N
  Index heads = 0, kv_heads = 0, dim = 0;
  double element = 2;      ///< bytes: bf16
  double sum_element = 4;  ///< bytes of a gradient that is summed on the way: float
  double keys = 0;         ///< of a rank, where K,V have another length than q; 0: as tokens

  /// Bytes of one vector of `dim` numbers a token and head, for these heads: of q, and of k.
  [[nodiscard]] double bytes(double of_heads) const {
    return batch * tokens * of_heads * static_cast<double>(dim) * element;
  }
  [[nodiscard]] double key_bytes(double of_heads) const {
    return keys > 0 ? bytes(of_heads) / tokens * keys : bytes(of_heads);
  }
};

/// Bytes that one rank sends.
struct Volume {
  double ring = 0;        ///< hop by hop, to the next rank
  double all_to_all = 0;  ///< to all ranks of its group of Ulysses
  double gather = 0;      ///< all-gather of K,V, or reduce-scatter of dK,dV

  [[nodiscard]] double total() const { return ring + all_to_all + gather; }
};

/// K,V heads of a rank among `ulysses` ranks, times these ranks: there are replicas where heads are fewer than ranks.
[[nodiscard]] double sent_kv_heads(const Attention& layer, int ulysses);

/// N = ulysses * ring: a ring alone for ulysses = 1, Ulysses alone for ring = 1.
[[nodiscard]] Volume hybrid_forward(const Attention& layer, int ulysses, int ring);
/// K,V again, and dK,dV one hop further; the gradients of q, k, v and out through the all-to-all.
[[nodiscard]] Volume hybrid_backward(const Attention& layer, int ulysses, int ring);

/// Each rank gets the K,V of all: the bytes of a ring, in one go; backward: again, and a reduce-scatter of dK,dV.
[[nodiscard]] Volume all_gather_forward(const Attention& layer, int ranks);
[[nodiscard]] Volume all_gather_backward(const Attention& layer, int ranks);

/// Tensor parallelism, each direction: two all-reduces of an activation, 2 (T - 1) / T of its bytes each.
[[nodiscard]] double tensor_bytes(double batch_tokens, Index hidden, double element, int tensor);

/// Decoding, for each token: the state (o, m, l) of each head to the rank that merges it, and (out, lse) to all ranks
/// (merge_over_ranks() of parallel/decode/decode.hpp, where all ranks merge as many heads).
[[nodiscard]] double decode_bytes(Index heads, Index dim, double element, int ranks);

/// One all-gather (or reduce-scatter) of a layer's weights over `shards` ranks (ZeRO-3, FSDP).
[[nodiscard]] double weight_bytes(double parameters, double element, int shards);

}  // namespace ring_attention::plan
