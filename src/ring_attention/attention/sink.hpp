/// \file
/// Attention sinks: one logit per query head, which takes part in the softmax and has no value.
///
/// A sink is one more element of the monoid of partial.hpp, (o, m, l) = (0, sink, 1). It is added once per row, after
/// all keys: not once per step, and not once per rank. l and lse include it. A row that sees no key has out = 0
/// and lse = sink. A sink of -inf means no sink.
/// Source: gpt-oss (OpenAI, 2025), one learned sink per head; Xiao et al., arXiv 2309.17453, for the name.
#pragma once

#include <vector>

#include "ring_attention/attention/partial.hpp"

namespace ring_attention {

/// Adds to every row the sink of its head. \param sinks  one per head, or none at all
template <class T>
void add_sinks(Partial<T>& partial, const std::vector<double>& sinks);

/// What these queries contribute to the gradient of every sink: -sum P_sink delta over the rows of its head, with
/// P_sink = e^{sink - lse} and delta = rowsum(dO * O), as for a key whose value is 0. The gradient is the sum over ranks.
/// \param unit  every term is rounded to a multiple of it; 0: no rounding
/// \returns as many numbers as there are sinks
template <class T>
[[nodiscard]] std::vector<double> sink_gradient(const BackwardInputs<T>& forward,
                                                const std::vector<double>& sinks, double unit = 0);
/// The largest finite |P_sink delta| of these rows and heads; 0 without sinks or rows.
template <class T>
[[nodiscard]] double largest_sink_term(const BackwardInputs<T>& forward, const std::vector<double>& sinks);
/// A unit in which the sum of `terms` terms, none above `largest`, is less than 2^53: doubles that are multiples of it add
/// exactly, in any order. 0 when largest is 0.
[[nodiscard]] double exact_sink_unit(double largest, Index terms);

}  // namespace ring_attention
