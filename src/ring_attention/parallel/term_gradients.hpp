/// \file
/// The gradients of terms that are numbers, summed over ranks; and which gradients of arrays depend on the ranks.
#pragma once

#include <optional>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/attention/scoring.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/parallel/rank_grid.hpp"

namespace ring_attention {

/// The sums over all ranks in the order of the ranks, on every rank. Collective.
void all_reduce(AllToAll& ranks, TermNumbers& numbers);

/// Adds to the gradients of an attention those that are sums over rows: the part of this rank's rows. Collective.
/// \param inputs  this rank's rows  \param shape  the queries of all ranks
/// \param exact   the bits do not depend on the ranks: each summand is rounded to a multiple of a unit of which all of them
///                are less than 2^53, so that every sum of doubles is exact
template <class T>
void complete(TermGradients<T>& gradients, AllToAll& ranks, const BackwardInputs<T>& inputs,
              const Scoring& scoring, bool exact, const Shape& shape);

/// With the same bits on any number of ranks (CpuOptions): the gradient of a bias that broadcasts over heads is a sum over
/// the ranks that share heads, and depends on how many they are. \throws InputError in that case
void require_exact_bias_gradient(const std::optional<Shape>& bias, const Shape& q, const RankGrid& grid);

}  // namespace ring_attention
