/// \file
/// `--check`: this rank's rows against the dense reference in double.
#pragma once

#include "program/run/input.hpp"
#include "program/run/report.hpp"
#include "program/watchdog.hpp"
#include "ring_attention/attention/backward.hpp"

namespace ring_attention {

/// Rows are all compared up to this many tokens in the sequence; above it each rank takes a sample.
inline constexpr Index check_all_rows_up_to = Index{16} << 10;
inline constexpr Index check_sample_rows = 128;  ///< per rank, spread evenly, first and last included

/// How many of a rank's `rows` are compared, of `tokens` in the sequence.
[[nodiscard]] inline Index checked_rows(Index rows, Index tokens) {
  return tokens <= check_all_rows_up_to ? rows : std::min(rows, check_sample_rows);
}

/// One rank's results, and the positions of its tokens.
template <class T>
struct RankResults {
  TokenRanges query_ranges, key_ranges;
  const Tensor<T>* q = nullptr;
  const Tensor<T>* bias = nullptr;  ///< of these queries
  const AttentionResult<T>* forward = nullptr;
  const Tensor<T>* grad_out = nullptr;  ///< null: no backward
  const Gradients<T>* gradients = nullptr;
  double kv_unit = 0;  ///< relative rounding error of K,V in messages
};

/// Compares out, lse and, when there are gradients, dq, dk, dv, dbias and dsink; enters the verdicts. Each rank sums
/// what its own rows add to dk, dv and dsink; a reduction adds the sums of all ranks. Reads K,V one head at a time.
/// Above 16k tokens dk and dv are those of some keys (check_keys.hpp), and left out where there is a bias; dsink, which needs
/// every row, is left out. Collective.
template <class T>
void check_results(const Communicator& comm, const RunInput& input, const RankResults<T>& results,
                   RankReport& report, Activity& activity);

}  // namespace ring_attention
