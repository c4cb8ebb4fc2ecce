/// \file
/// The gradient of attention sinks (sink.hpp).
#pragma once

#include <vector>

#include "ring_attention/attention/backward_engine.hpp"

namespace ring_attention {

/// What these queries contribute to the gradient of every sink: -sum P_sink delta over the rows of its head, with
/// P_sink = e^{sink - lse} and delta = rowsum(dO * O) - dlse, as for a key whose value is 0. The gradient is the sum over ranks.
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
