/// \file
/// K,V that travel in a narrower type than the arithmetic.
#pragma once

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

/// An engine for float that takes K,V in Wire, and widens them once a step.
///
/// K and V are rounded once, before the first step, on the rank that owns them; that rank too computes with the
/// rounded values. So the result does not depend on the number of ranks. Gradients stay float.
/// Memory beside the engine's: K and V of one shard in float. With bf16 that and the parcels, of half the size,
/// are what float parcels alone take.
template <class Engine, class Wire>
class WideningEngine {
 public:
  using value_type = typename Engine::value_type;

  /// \param shard  shape of the largest K that arrives, `[batch, kv_heads, tokens, dim]`
  WideningEngine(Engine& engine, const Shape& shard) : engine_(engine), k_(shard), v_(shard) {}

  void accumulate(const KeyValue<Wire>& kv, const Progress& progress = {}) {
    engine_.accumulate(widened(kv), progress);
  }
  void accumulate(const KeyValue<Wire>& kv, const KeyValueGradient<value_type>& gradient,
                  const Progress& progress = {}) {
    engine_.accumulate(widened(kv), gradient, progress);
  }

 private:
  [[nodiscard]] KeyValue<value_type> widened(const KeyValue<Wire>& kv) {
    return {widened(kv.k, k_), widened(kv.v, v_), kv.runs};
  }
  [[nodiscard]] static View<const value_type> widened(const View<const Wire>& from,
                                                      Tensor<value_type>& room) {
    require(from.size() <= room.size(), "WideningEngine: more keys than the largest shard");
    std::ranges::transform(from.elements(), room.data(), [](Wire x) { return static_cast<value_type>(x); });
    return {room.data(), from.shape()};
  }

  Engine& engine_;
  Tensor<value_type> k_, v_;
};

}  // namespace ring_attention
