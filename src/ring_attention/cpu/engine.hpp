/// \file
/// The fast engine of the CPU: float32, one query in every SIMD lane, tiles distributed over threads.
///
/// The same algorithm, interface and meaning as the readable BlockwiseEngine; forward_kernel.cpp holds the
/// arithmetic. Results do not depend on the number of threads; they differ between instruction sets by rounding.
#pragma once

#include <type_traits>

#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/cpu/isa.hpp"
#include "ring_attention/cpu/lanes.hpp"

namespace ring_attention {

/// How an engine of the CPU computes. The result is the same for every number of threads.
struct CpuOptions {
  int threads = 1;
  Isa isa = best_isa();
};

/// begin(q), then accumulate(kv) once per piece of keys in any number and order, then finish().
///
/// Memory: the state, which becomes the result, and a tile for each thread, all taken in begin().
class CpuEngine {
 public:
  using value_type = float;

  explicit CpuEngine(Scoring scoring, const CpuOptions& options = {});

  /// Starts with no key seen. `q` [batch, heads, seq, dim] stays with the caller and must outlive finish();
  /// its tokens are at `ranges`. \throws Error for a bias: the readable engine takes one.
  void begin(View<const float> q, TokenRanges ranges, View<const float> bias = {});

  /// Merges these keys into the state. Calls `progress` after every tile that the calling thread has done.
  /// \throws Error when the shapes do not belong together.
  void accumulate(const KeyValue<float>& kv, const Progress& progress = {});

  /// out = o / l and lse = log 2 * m + log l. Ends the work on these queries.
  [[nodiscard]] AttentionResult<float> finish();

  /// The state (o, m, l) as it is now, with m in units of the natural logarithm.
  [[nodiscard]] Partial<float> to_partial() const;

 private:
  void attend(const KeyValue<float>& kv, Index batch, Index head, Index kv_head, const cpu::QueryTile& tile,
              float* workspace);

  Scoring scoring_;
  int threads_;
  const cpu::ForwardKernel& kernel_;
  View<const float> q_;
  TokenRanges q_ranges_;
  std::vector<cpu::QueryTile> tiles_;
  Partial<float> state_;     // m in units of log 2
  Tensor<float> workspace_;  // [1, 1, threads, floats of a tile]
};

/// The engine for arithmetic in T: the fast one for float, the readable one for double.
template <class T>
using BestForward = std::conditional_t<std::is_same_v<T, float>, CpuEngine, BlockwiseEngine<T>>;

/// Makes an engine of either kind, forward or backward.
/// \param block    for a readable engine
/// \param options  for a fast one
template <class Engine>
[[nodiscard]] Engine make_engine(const Scoring& scoring, Index block, const CpuOptions& options = {}) {
  if constexpr (std::is_constructible_v<Engine, Scoring, CpuOptions>)
    return Engine(scoring, options);
  else
    return Engine(scoring, block);
}

/// Single device: begin, one accumulate, finish.
template <class T>
[[nodiscard]] AttentionResult<T> attention_forward(View<const T> q, View<const T> k, View<const T> v,
                                                   const Scoring& scoring, Index block = 64,
                                                   const CpuOptions& options = {}, View<const T> bias = {}) {
  auto engine = make_engine<BestForward<T>>(scoring, block, options);
  engine.begin(q, whole(q.shape().seq), bias);
  engine.accumulate({k, v, whole(k.shape().seq)});
  return engine.finish();
}

}  // namespace ring_attention
