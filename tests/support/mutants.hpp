// Wrong variants that look right, which tests of diagnose run. Each is one replaced rule of a small engine, a change at the
// edges of an engine, or a transport.
#pragma once

#include <algorithm>
#include <cmath>

#include "ring_attention/ring/transports/loopback.hpp"
#include "support/run.hpp"
#include "support/small_engine.hpp"

namespace ring_attention::test {

// ---- rules of a small engine --------------------------------------------------------------------------------

/// M = -1e4 as start: scores far below it underflow.
struct FiniteStart : RightRules {
  template <class T>
  static constexpr T initial_max = T(-1e4);
};

/// exp(s - m) with the tile's own m: NaN in a row that this tile masks fully.
struct UnguardedScores : RightRules {
  template <class T>
  static T rescale(T from, T to) {
    return std::exp(from - to);
  }
};

/// Merges rows with the `rescale` of Rules.
template <class T, class Rescale>
void merge_row_with(SoftmaxState<T>& state, std::span<T> o, const SoftmaxState<T>& b, std::span<const T> o_b,
                    Rescale rescale) {
  const T m = std::max(state.m, b.m);
  const T keep = rescale(state.m, m);
  const T add = rescale(b.m, m);
  for (std::size_t d = 0; d < o.size(); ++d) o[d] = keep * o[d] + add * o_b[d];
  state = {m, keep * state.l + add * b.l};
}

/// The same lack of a guard where two states merge: NaN when neither has seen a key.
struct UnguardedMerge : RightRules {
  template <class T>
  static void merge_row(SoftmaxState<T>& state, std::span<T> o, const SoftmaxState<T>& b,
                        std::span<const T> o_b) {
    merge_row_with(state, o, b, o_b, [](T from, T to) { return std::exp(from - to); });
  }
};

/// A new maximum, but the old sum is not moved to it.
struct ForgetsToRescale : RightRules {
  template <class T>
  static void merge_row(SoftmaxState<T>& state, std::span<T> o, const SoftmaxState<T>& b,
                        std::span<const T> o_b) {
    merge_row_with(state, o, b, o_b,
                   [&](T from, T to) { return from == state.m ? T{1} : rescale(from, to); });
  }
};

/// Keeps normalised rows and joins them by their lse, the new lse being what `Join` makes of the two.
template <class Join>
struct LseRules : RightRules {
  template <class T>
  static void merge_row(SoftmaxState<T>& state, std::span<T> o, const SoftmaxState<T>& b,
                        std::span<const T> o_b) {
    if (b.l == 0) return;
    const T lse = state.l > 0 ? state.lse() : negative_infinity<T>;
    const T merged = lse == negative_infinity<T> ? b.lse() : Join::join(lse, b.lse());
    const T keep = rescale(lse, merged);
    const T add = rescale(b.lse(), merged) / b.l;
    for (std::size_t d = 0; d < o.size(); ++d) o[d] = keep * o[d] + add * o_b[d];
    state = {merged, T{1}};
  }
};

/// lse + log(1 + e^{lse_b - lse}): e^89 is infinite in float.
struct TextbookJoin {
  template <class T>
  static T join(T lse, T lse_b) {
    return lse + std::log(1 + std::exp(lse_b - lse));
  }
};

using OverflowingLseMerge = LseRules<TextbookJoin>;

/// Query heads assigned round-robin: h mod Hkv where real models have h / g.
template <Index KvHeads>
struct InterleavedHeads : RightRules {
  static Index kv_head(Index head, Index) { return head % KvHeads; }
};

// ---- the ring's topology: what an engine computes when the loop asks a wrong one -----------------------

struct RightOwners {
  static int steps(const Ring& ring) { return ring.steps(); }
  static int owner(const Ring& ring, int step) { return ring.owner(step); }
};

/// Algorithm 1 as printed: count = 1 .. N-1.
struct OneStepTooFew : RightOwners {
  static int steps(const Ring& ring) { return ring.steps() - 1; }
};

/// The labels of the parcels lag one step behind the parcels.
struct OwnerOffByOne : RightOwners {
  static int owner(const Ring& ring, int step) { return Ring{ring.next(), ring.size}.owner(step); }
};

/// The labels run the other way round the ring.
struct OwnerBackwards : RightOwners {
  static int owner(const Ring& ring, int step) { return ring.owner(ring.size - step); }
};

/// The library's engine in such a ring; for shards of equal length.
template <class T, class Owners>
class EngineWithOwners : public Engine<T> {
 public:
  EngineWithOwners(std::unique_ptr<Engine<T>> engine, const Ring& ring, const Placement& keys)
      : engine_(std::move(engine)), ring_(ring), keys_(keys) {}

  void accumulate(const KeyValue<T>& kv, const Progress& progress = {}) override {
    const int step = step_++;
    if (step >= Owners::steps(ring_)) return;
    engine_->accumulate({kv.k, kv.v, keys_.ranges(Owners::owner(ring_, step))}, progress);
  }
  [[nodiscard]] AttentionResult<T> finish() override { return engine_->finish(); }

 private:
  std::unique_ptr<Engine<T>> engine_;
  Ring ring_;
  Placement keys_;
  int step_ = 0;
};

// ---- the transport -------------------------------------------------------------------------------------

/// Swaps current and incoming as soon as the hop begins, not when the compute on current is over.
class SwapsTooEarly : public LoopbackTransport {
 public:
  using LoopbackTransport::LoopbackTransport;

  void start(const Hop& hop) override {
    hop_ = hop;
    LoopbackTransport::start(hop);
    LoopbackTransport::finish();
    swap();  // what is computed with now belongs to the next step
  }
  void finish() override { swap(); }

 private:
  void swap() const {
    auto* const current = const_cast<std::byte*>(hop_.send.data());  // NOLINT: the mistake itself
    std::swap_ranges(current, current + std::min(hop_.send.size(), hop_.receive.size()), hop_.receive.data());
  }
  Hop hop_;
};

/// Returns the parcels to their owners with an N-th hop, which no rank needs.
class OneHopTooMany : public LoopbackTransport {
 public:
  using LoopbackTransport::LoopbackTransport;

  void start(const Hop& hop) override {
    hop_ = hop;
    LoopbackTransport::start(hop);
  }
  void drain() override {
    LoopbackTransport::start(hop_);
    LoopbackTransport::finish();
    LoopbackTransport::drain();
  }

 private:
  Hop hop_;
};

}  // namespace ring_attention::test
