/// \file
/// `FunctionEngine`: any function that attends to some keys, as an engine of the ring. Forward only.
///
/// The result of a function is normalised, but it is still a state: attention over some keys, with out and lse, is the
/// state (o, m, l) = (out, lse, 1) of partial.hpp. So results for several pieces of the keys merge like all other states,
/// with no exponential above 1. (out e^lse / sum e^lse would overflow.)
/// Source: Liu et al., Ring Attention, arXiv 2310.01889, section 3: a host may compute with any blockwise attention.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>

#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/attention/shapes.hpp"
#include "ring_attention/attention/sink.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

/// Some queries and some keys. The engine's caller owns all arrays.
template <class T>
struct AttentionTask {
  View<const T> q;             ///< [batch, heads, queries, dim]
  View<const T> k, v;          ///< [batch, kv_heads, keys, dim]; and value_dim columns
  const TokenRanges& queries;  ///< the positions of q
  const TokenRanges& keys;     ///< the positions of k and v
  const Scoring& scoring;      ///< what the function applies: scale, mask, ALiBi, dropout; without sinks
};

/// Attention of these queries over these keys alone: out [batch, heads, queries, value_dim] and lse [batch, heads, queries,
/// 1]. A query that sees none of the keys has lse = -inf; its out may be anything.
template <class T>
using AttentionFunction = std::function<AttentionResult<T>(const AttentionTask<T>&)>;

/// Call begin(q), then accumulate(kv) once per piece of the keys in any number and order, then finish().
///
/// Calls the function once per piece, unless the mask hides the whole piece. Exceptions of the function pass through.
template <class T>
class FunctionEngine : public Engine<T> {
 public:
  using value_type = T;

  FunctionEngine(Scoring scoring, AttentionFunction<T> function)
      : sinks_(std::exchange(scoring.sinks, {})),
        scoring_(std::move(scoring)),
        function_(std::move(function)) {}

  /// Starts with no key seen. The caller owns `q` [batch, heads, seq, dim], which must outlive finish(). `ranges` are
  /// the positions of its tokens. \param value_dim  columns of v; none given: as many as q has
  void begin(View<const T> q, TokenRanges ranges, std::optional<Index> value_dim = {}) {
    require_queries(q.shape(), ranges);
    q_ = q;
    ranges_ = std::move(ranges);
    state_ = Partial<T>::empty(q.shape().with_dim(value_dim.value_or(q.shape().dim)));
  }

  /// Merges these keys into the state, then calls `progress` once.
  /// \throws Error when the shapes, including those of the function's result, do not match.
  void accumulate(const KeyValue<T>& kv, const Progress& progress = {}) override {
    (void)require_keys({q_.shape(), state_.o.shape()}, kv);
    if (scoring_.mask.any_visible(ranges_, kv.ranges))
      merge(state_, state_of(function_({q_, kv.k, kv.v, ranges_, kv.ranges, scoring_})));
    if (progress) progress();
  }

  /// Adds the sinks; out = o / l and lse = m + log l. Ends the work on these queries.
  [[nodiscard]] AttentionResult<T> finish() override {
    add_sinks(state_, sinks_);
    return ring_attention::finish(std::move(state_));
  }

 private:
  [[nodiscard]] Partial<T> state_of(AttentionResult<T> result) const {
    const Shape& q = q_.shape();
    require(result.out.shape() == state_.o.shape() && result.lse.shape() == q.per_row(),
            "the function returned out " + to_string(result.out.shape()) + " and lse " +
                to_string(result.lse.shape()) + " for queries " + to_string(q));
    Partial<T> state{std::move(result.out), std::move(result.lse), Tensor<T>(q.per_row())};
    for (Index b = 0; b < q.batch; ++b)
      for (Index h = 0; h < q.heads; ++h)
        for (Index s = 0; s < q.seq; ++s) {
          const SoftmaxState<T> row = softmax_state(state.m.view()(b, h, s));
          state.l.view()(b, h, s) = row.l;
          if (row.l == 0)
            std::ranges::fill(state.o.view().row(b, h, s), T{0});  // may be NaN: no key was seen
        }
    return state;
  }

  std::vector<double> sinks_;
  Scoring scoring_;
  AttentionFunction<T> function_;
  View<const T> q_;
  TokenRanges ranges_;
  Partial<T> state_;
};

}  // namespace ring_attention
