/// \file
/// Attention sinks: one logit a query head that takes part in the softmax and has no value.
///
/// A sink is one more element of the monoid of partial.hpp, (o, m, l) = (0, sink, 1). It is added once a row, when
/// all keys are in: not once a step, and not once a rank. l and lse include it. A row that sees no key has out = 0
/// and lse = sink. -inf is no sink.
/// Source: gpt-oss (OpenAI, 2025), one learned sink a head; Xiao et al., arXiv 2309.17453, for the name.
#pragma once

#include <vector>

#include "ring_attention/attention/partial.hpp"

namespace ring_attention {

/// Adds its head's sink to every row. \param sinks  one a head, or none at all
template <class T>
void add_sinks(Partial<T>& partial, const std::vector<double>& sinks);

/// What these queries contribute to the gradient of every sink: -sum P_sink delta over the rows of its head, with
/// P_sink = e^{sink - lse} and delta = rowsum(dO * O), as for a key whose value is 0. The ranks' sums add up.
/// \param unit  every term is rounded to a multiple of it; 0: to none
/// \returns as many numbers as there are sinks
template <class T>
[[nodiscard]] std::vector<double> sink_gradient(const BackwardInputs<T>& forward,
                                                const std::vector<double>& sinks, double unit = 0);
/// The largest finite |P_sink delta| of these rows and heads; 0 without sinks or rows.
template <class T>
[[nodiscard]] double largest_sink_term(const BackwardInputs<T>& forward, const std::vector<double>& sinks);
/// A unit of which the sum of so many terms, none above `largest`, is less than 2^53: in multiples of it doubles add exactly,
/// in any order. 0 when largest is 0.
[[nodiscard]] double exact_sink_unit(double largest, Index terms);

}  // namespace ring_attention
