/// \file
/// The fast backward of the CPU; backward_kernel.cpp holds the arithmetic.
///
/// Algorithm, interface and meaning are those of the readable BlockwiseBackward.
#pragma once

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/attention/row_dot.hpp"
#include "ring_attention/cpu/engine.hpp"

namespace ring_attention {

/// begin(forward), then accumulate(kv, gradient) once per piece of keys, then finish() -> dQ.
///
/// Deterministic: every sum has one order, for any number of threads. One pass with five products: threads go through
/// the tiles of queries and the parts of the keys diagonal by diagonal, also for a single head.
template <class T>
class CpuBackward : public BackwardEngine<T> {
 public:
  using value_type = T;

  explicit CpuBackward(Scoring scoring, const CpuOptions& options = {});

  /// Starts with dQ = 0 and dBias = 0. The queries are at `ranges`.
  void begin(const BackwardInputs<T>& forward, TokenRanges ranges);

  /// Adds to dQ what these keys contribute, and to `gradient` what these queries contribute to dK and dV.
  /// Calls `progress` after every task of the calling thread, a tile of queries and a part of the keys.
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient,
                  const Progress& progress = {}) override;

  /// dQ. Ends the work on these queries.
  [[nodiscard]] Tensor<T> finish() override;
  /// dBias, like the bias: dS, summed over what broadcasts.
  [[nodiscard]] TermGradients<T> term_gradients() override { return {std::move(grad_bias_)}; }

 private:
  /// Keys of one range of a rank.
  struct KeyRange {
    TokenRange keys;
    Index first;  ///< their place in the arrays of the rank
  };

  /// Neither the parts of the keys nor the order of the sums depend on the number of threads.
  [[nodiscard]] static std::vector<KeyRange> parts_of(const TokenRanges& ranges);

  void differentiate(const KeyValue<T>& kv, const KeyValueGradient<T>& gradient, Index batch, Index head,
                     Index kv_head, const cpu::QueryTile& tile, const KeyRange& part, T* workspace);

  Scoring scoring_;
  int threads_;
  const cpu::BackwardKernel<T>& kernel_;
  BackwardInputs<T> forward_;
  TokenRanges q_ranges_;
  cpu::QueryIntervals intervals_;
  std::vector<cpu::QueryTile> tiles_;
  Tensor<T> delta_;      // [batch, heads, seq, 1]
  Tensor<T> grad_q_;     // [batch, heads, seq, dim]
  Tensor<T> grad_bias_;  // like the bias
  Tensor<T> workspace_;  // [1, 1, threads, elements of a tile]
};

}  // namespace ring_attention
