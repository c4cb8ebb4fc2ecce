/// \file
/// The gradients of sinks, summed over ranks.
#pragma once

#include "ring_attention/attention/sink_gradient.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// sink_gradient() of the rows of all ranks, on every rank. Collective.
/// \param exact  the bits do not depend on the ranks: each term is rounded to a multiple of a unit of which all terms of
///               `shape`, the queries of all ranks, are less than 2^53, so that every sum of doubles is exact
template <class T>
[[nodiscard]] std::vector<double> sink_gradient_over_ranks(const Communicator& comm,
                                                           const BackwardInputs<T>& inputs,
                                                           const std::vector<double>& sinks, bool exact,
                                                           const Shape& shape);

}  // namespace ring_attention
