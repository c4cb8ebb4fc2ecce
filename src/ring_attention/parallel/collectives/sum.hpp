/// \file
/// Sums over the ranks of a group, in the order of the ranks: the same bits on every rank and over every transport.
///
/// `all_reduce` = `reduce_scatter`, then `all_gather`: 2 (n - 1) / n of the array leave a rank, as in a ring's all-reduce.
/// A ring's reduce-scatter adds each slice in another order, so its bits depend on the slice.
#pragma once

#include <span>

#include "ring_attention/core/memory.hpp"
#include "ring_attention/core/token_range.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"

namespace ring_attention {

/// own = the sum over the ranks of piece_of(the rows of `all`, this rank). Collective over the group, as all functions here.
/// \param all  as long on every rank
/// \param row  numbers of a row  \param memory  adds rows: ExactMemory merges exact sums
/// Memory besides: as many numbers as `all` has.
template <class T>
void reduce_scatter(AllToAll& group, std::span<const T> all, std::span<T> own, Index row = 1,
                    const Memory& memory = host_memory());

/// all = the pieces of all ranks, of its rows. `own` may be this rank's piece of `all`.
template <class T>
void all_gather(AllToAll& group, std::span<const T> own, std::span<T> all, Index row = 1);

/// Element by element, in place.
template <class T>
void all_reduce(AllToAll& group, std::span<T> values);

/// The sum of one number a rank.
[[nodiscard]] double all_reduce(AllToAll& group, double value);

}  // namespace ring_attention
