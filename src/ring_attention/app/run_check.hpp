/// \file
/// `--check`: this rank's rows against the dense reference in double.
#pragma once

#include "ring_attention/app/run_input.hpp"
#include "ring_attention/ring/activity.hpp"

namespace ring_attention {

/// The verdict on one rank's rows.
struct RowCheck {
  Comparison out;
  Comparison lse;
  Index rows = 0;  ///< compared, per head
};

/// Rows are all compared up to this many tokens in the sequence; above it each rank takes a sample.
inline constexpr Index check_all_rows_up_to = 16 * 1024;
inline constexpr Index check_sample_rows = 128;  ///< per rank, spread evenly, first and last included

/// Reads K,V one head at a time and compares row by row. Collective, because reading is: a rank without rows
/// reads along.
template <class T>
[[nodiscard]] RowCheck check_rows(RunInput& input, const Runs& runs, const Tensor<T>& q,
                                  const Attended<T>& got, Activity& activity);

}  // namespace ring_attention
