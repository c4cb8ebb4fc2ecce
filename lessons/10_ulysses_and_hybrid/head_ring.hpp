// Lesson 10, beside the idea: a ring of the library over shards, for some heads, forward and backward.
#pragma once

#include "ring_attention/cpu/backward.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"

namespace ring_attention::lesson_10 {

/// Some heads and some tokens of an array [1, heads, tokens, dim].
[[nodiscard]] inline Tensor<float> block_of(View<const float> x, const Interval& heads,
                                            const Interval& tokens) {
  Tensor<float> block({1, heads.end - heads.begin, tokens.end - tokens.begin, x.shape().dim});
  for (Index head = 0; head < block.shape().heads; ++head)
    for (Index token = 0; token < block.shape().seq; ++token)
      std::ranges::copy(x.row(0, heads.begin + head, tokens.begin + token),
                        block.view().row(0, head, token).begin());
  return block;
}

/// The arrays of some heads and of one shard of tokens, in the head layout.
struct Heads {
  Tensor<float> q, k, v;
  AttentionResult<float> attended;
};

/// Rank `rank` of the ring. \param make_transport  makes its transport for a channel
class HeadRing {
 public:
  HeadRing(const Placement& placement, int rank, const Scoring& scoring)
      : placement_(placement), rank_(rank), scoring_(scoring) {}

  const AttentionResult<float>& attend(Heads heads, auto make_transport,
                                       TransportStatistics* sent = nullptr) {
    heads_ = std::move(heads);
    KvParcel<float> kv = parcel();
    auto&& transport = make_transport(0);
    CpuEngine<float> engine(scoring_);
    engine.begin(heads_.q, placement_.ranges(rank_));
    ring_forward(engine, transport, kv);
    if (sent != nullptr) *sent = transport.statistics();
    heads_.attended = engine.finish();
    return heads_.attended;
  }
  /// After attend().
  [[nodiscard]] Gradients<float> differentiate(const Tensor<float>& grad_out, auto make_transport) {
    KvParcel<float> kv = parcel(), gradients(heads_.k.shape(), placement_, rank_);
    auto&& kv_transport = make_transport(0);
    auto&& gradient_transport = make_transport(1);
    CpuBackward<float> engine(scoring_);
    const auto& [out, lse] = heads_.attended;
    engine.begin({heads_.q, out, lse, grad_out}, placement_.ranges(rank_));
    ring_backward(engine, kv_transport, gradient_transport, kv, gradients);
    return {engine.finish(), converted<float>(View<const float>(gradients.k())),
            converted<float>(View<const float>(gradients.v()))};
  }

 private:
  [[nodiscard]] KvParcel<float> parcel() const {
    KvParcel<float> kv(heads_.k.shape(), placement_, rank_);
    std::ranges::copy(heads_.k.view().elements(), kv.k().data());
    std::ranges::copy(heads_.v.view().elements(), kv.v().data());
    return kv;
  }

  Placement placement_;
  int rank_;
  Scoring scoring_;
  Heads heads_;
};

}  // namespace ring_attention::lesson_10
