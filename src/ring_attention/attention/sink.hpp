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

}  // namespace ring_attention
