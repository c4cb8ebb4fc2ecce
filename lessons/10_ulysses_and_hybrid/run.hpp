// Lesson 10, beside the idea: a rank's part, forward and backward.
#pragma once

#include "part.hpp"
#include "ring_attention/parallel/mpi_links.hpp"

namespace ring_attention::lesson_10 {

/// What a rank sends.
struct Sent {
  Index forward_bytes = 0, backward_bytes = 0;  // by all-to-all
  TransportStatistics ring;                     // of the forward
};

/// The rows of this rank's tokens, all heads.
[[nodiscard]] inline Result run(const RankShare& part, Sent& sent) {
  const lesson::UlyssesGroup queries = part.queries(), keys = part.keys();
  MpiAllToAll link(part.heads());
  const CpuDevice<float> device;
  const SharedAttention shared = part.own_heads();
  MpiLinks links(part.ring(), shared.grid.ulysses, shared.grid.ring);
  ContextParallel<float> ring(device, links, shared);
  Tensor<float> own_q, own_k, own_v;  // of the heads of this rank
  AttentionResult<float> own_attended;
  const auto attend = [&](Tensor<float> q, Tensor<float> k, Tensor<float> v) -> const auto& {
    own_q = std::move(q);
    own_k = std::move(k);
    own_v = std::move(v);
    own_attended = ring.forward(own_q, own_k, own_v);
    return own_attended;
  };
  const Tensor<float> q = part.q(), k = part.k(), v = part.v();
  const AttentionResult<float> attended = lesson::ulysses(q, k, v, queries, keys, link, attend);
  sent.forward_bytes = link.statistics().bytes_sent;
  sent.ring = ring.hops(Channel::kv);

  // The backward: to_sequence is the adjoint of to_heads, and to_heads that of to_sequence.
  const Tensor<float> grad_out = lesson::to_heads(part.grad_out(), queries, link);
  Gradients<float> own = ring.backward({own_q, own_attended.out, own_attended.lse, grad_out}, own_k, own_v);
  if (part.returns_zeros()) {
    own.k.fill(0);
    own.v.fill(0);
  }
  const Tensor<float> dq = lesson::to_sequence(own.q, queries, link);
  Tensor<float> dk = lesson::to_sequence(own.k, keys, link), dv = lesson::to_sequence(own.v, keys, link);
  sent.backward_bytes = link.statistics().bytes_sent - sent.forward_bytes;
  return {{part.in_order(attended.out), part.in_order(attended.lse)},
          {part.in_order(dq), std::move(dk), std::move(dv)}};
}

}  // namespace ring_attention::lesson_10
