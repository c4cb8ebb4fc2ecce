/// \file
/// `RunContext`: what the parts of a run share, and what a rank holds and computes.
#pragma once

#include "program/backend.hpp"
#include "program/placement_choice.hpp"
#include "program/run/check.hpp"
#include "program/run/input.hpp"

namespace ring_attention {

/// The input, and which of its tokens and heads are this rank's. It holds all heads of a slice, and computes some heads of
/// a whole shard: the same, unless ranks share the heads.
struct RunContext {
  const Communicator& comm;
  const RunOptions& options;
  const RunInput& input;
  Activity& activity;
  Trace* trace;                    ///< null: none
  std::optional<Balance> balance;  ///< that is expected of a balanced placement
  SharedAttention shared;

  RunContext(const Communicator& of, const RunOptions& given, const RunInput& arrays, Activity& watched,
             Trace* written, const RankGrid& grid, const PlacementChoice& placement)
      : comm(of),
        options(given),
        input(arrays),
        activity(watched),
        trace(written),
        balance(placement.balance),
        shared{grid,  given.division(), placement.tokens, arrays.q(), arrays.kv(), arrays.scoring(),
               false, arrays.bias()} {}

  [[nodiscard]] const RankGrid& grid() const { return shared.grid; }
  [[nodiscard]] bool shares_heads() const { return grid().ulysses.size > 1; }
  /// The tokens that this rank holds.
  [[nodiscard]] TokenRanges query_ranges() const { return grid().slice(shared.tokens.queries); }
  [[nodiscard]] TokenRanges key_ranges() const { return grid().slice(shared.tokens.keys); }

  /// The heads of a bias that this rank computes with: [0, 1) of one that broadcasts over heads.
  [[nodiscard]] Interval heads_of(const Shape& bias) const {
    const Axis& ulysses = grid().ulysses;
    return shared_heads(bias.heads, ulysses.size)[static_cast<std::size_t>(ulysses.index(grid().rank))];
  }

  /// What it computes.
  [[nodiscard]] Workload workload() const {
    Workload work{shared, options.wants_gradients()};
    if (!shared.bias) return work;
    Shape own = shared.bias->with_seq(shared.tokens.queries.max_tokens());
    own.heads = heads_of(*shared.bias).end - heads_of(*shared.bias).begin;
    work.bias = own.size();
    if (options.check && work.gradients) {
      // The gradient, its reference, roundings and sizes, in double; also `inputs` where K and V are rounded.
      const Index arrays = options.kv_dtype == "same" && options.dtype == "float32" ? 4 : 5;
      work.check_bytes = arrays * static_cast<Index>(sizeof(double)) *
                         own.with_seq(checked_rows(own.seq, input.q().seq)).size();
    }
    return work;
  }
};

}  // namespace ring_attention
