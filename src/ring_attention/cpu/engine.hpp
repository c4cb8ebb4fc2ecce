/// \file
/// The fast engine of the CPU: float or double, one query in every SIMD lane, tiles distributed over threads.
///
/// Algorithm, interface and meaning are those of the readable BlockwiseEngine; forward_kernel.cpp holds the
/// arithmetic. Results do not depend on the number of threads; they differ between instruction sets by rounding.
#pragma once

#include <optional>
#include <type_traits>

#include "ring_attention/attention/shapes.hpp"
#include "ring_attention/attention/sink.hpp"
#include "ring_attention/attention/terms.hpp"
#include "ring_attention/cpu/isa.hpp"
#include "ring_attention/cpu/lanes.hpp"

namespace ring_attention {

/// How an engine of the CPU computes. The result is the same for every number of threads.
struct CpuOptions {
  int threads = 1;
  Isa isa = best_isa();
  /// Tokens in a tile of the engines whose bits do not depend on the number of ranks (exact/), in float only; 0: the
  /// others.
  Index same_bits = 0;
};

/// begin(q), then accumulate(kv) once per piece of keys in any number and order, then finish().
///
/// Memory: the state, which becomes the result, and a tile for each thread, all taken in begin().
template <class T>
class CpuEngine : public Engine<T> {
 public:
  using value_type = T;

  explicit CpuEngine(Scoring scoring, const CpuOptions& options = {});

  /// Starts with no key seen. `q` [batch, heads, seq, dim] and the terms of these queries stay with the caller and must
  /// outlive finish(); the tokens of q are at `ranges`. \param value_dim  columns of v; none given: as many as q has
  void begin(View<const T> q, TokenRanges ranges, View<const T> bias = {},
             std::optional<Index> value_dim = {});

  /// Merges these keys into the state. Calls `progress` after every tile that the calling thread has done.
  /// \throws Error when the shapes do not belong together.
  void accumulate(const KeyValue<T>& kv, const Progress& progress = {}) override;

  /// Adds the sinks; out = o / l and lse = m + log l. Ends the work on these queries.
  [[nodiscard]] AttentionResult<T> finish() override;

  /// The state (o, m, l) as it is now, with m in units of the natural logarithm.
  [[nodiscard]] Partial<T> to_partial() const;

 private:
  void attend(const KeyValue<T>& kv, Index batch, Index head, Index kv_head, const cpu::QueryTile& tile,
              T* workspace);

  Scoring scoring_;
  int threads_;
  const cpu::Kernels<T>& kernels_;
  const cpu::ForwardKernel<T>* kernel_ = nullptr;  // of these queries
  View<const T> q_, bias_;
  TokenRanges q_ranges_;
  cpu::QueryIntervals intervals_;
  std::vector<cpu::QueryTile> tiles_;
  Partial<T> state_;
  Tensor<T> workspace_;  // [1, 1, threads, elements of a tile]
};

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
                                                   const Scoring& scoring, const CpuOptions& options = {},
                                                   View<const T> bias = {}) {
  CpuEngine<T> engine(scoring, options);
  engine.begin(q, whole(q.shape().seq), bias, v.shape().dim);
  engine.accumulate({k, v, whole(k.shape().seq)});
  return engine.finish();
}

}  // namespace ring_attention
