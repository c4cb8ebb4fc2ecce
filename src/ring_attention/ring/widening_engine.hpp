/// \file
/// `WideningEngine`: K,V travel in a narrower type than the arithmetic.
#pragma once

#include <algorithm>

#include "ring_attention/attention/engine.hpp"
#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

/// An engine for float that takes K,V of type Narrow, and widens them once a step.
///
/// K and V are rounded once, before the first step, on the rank that owns them; that rank also computes with the
/// rounded values. So the result does not depend on the number of ranks. Gradients stay float.
/// Memory beside the engine's: K and V of one shard in float. With bf16 the parcels have half the size, and together
/// with that shard they need the memory of float parcels.
template <class Wide, class Narrow>
class WideningEngine {
 public:
  using value_type = typename Wide::value_type;

  /// \param shard  shape of the largest K that arrives, `[batch, kv_heads, tokens, dim]`
  WideningEngine(Wide& engine, const Shape& shard) : engine_(engine), k_(shard), v_(shard) {}

  void accumulate(const KeyValue<Narrow>& kv, const Progress& progress = {}) {
    engine_.accumulate(widened(kv), progress);
  }
  void accumulate(const KeyValue<Narrow>& kv, const KeyValueGradient<value_type>& gradient,
                  const Progress& progress = {}) {
    engine_.accumulate(widened(kv), gradient, progress);
  }

 private:
  [[nodiscard]] KeyValue<value_type> widened(const KeyValue<Narrow>& kv) {
    return {widened(kv.k, k_), widened(kv.v, v_), kv.ranges};
  }
  [[nodiscard]] static View<const value_type> widened(const View<const Narrow>& from,
                                                      Tensor<value_type>& to) {
    require(from.size() <= to.size(), "WideningEngine: more keys than the largest shard");
    std::ranges::transform(from.elements(), to.data(), [](Narrow x) { return static_cast<value_type>(x); });
    return {to.data(), from.shape()};
  }

  Wide& engine_;
  Tensor<value_type> k_, v_;
};

}  // namespace ring_attention
