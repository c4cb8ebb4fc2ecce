/// \file
/// Sums over the ranks of a line, in the order of the ranks: the same bits on every rank and over every transport.
///
/// `sum` = `sum_scatter`, then `gather`: 2 (n - 1) / n of the array leave a rank, as in a ring's all-reduce. A ring's
/// reduce-scatter adds each slice in another order, so its bits depend on the slice.
#pragma once

#include <span>

#include "ring_attention/core/token_range.hpp"
#include "ring_attention/parallel/line.hpp"

namespace ring_attention {

/// Piece `piece` of `pieces` nearly equal pieces of `elements` numbers: the first ones have one more.
[[nodiscard]] Interval piece_of(Index elements, int piece, int pieces);

/// own = the sum over the ranks of piece_of(`all`, this rank). Collective over the line, as all functions here.
/// \param all  as long on every rank
/// Memory besides: as many numbers as `all` has.
template <class T>
void sum_scatter(const Line& line, std::span<const T> all, std::span<T> own);

/// all = the pieces of all ranks. `own` may be this rank's piece of `all`.
template <class T>
void gather(const Line& line, std::span<const T> own, std::span<T> all);

/// Element by element, in place.
template <class T>
void sum(const Line& line, std::span<T> values);

/// Of one number a rank.
[[nodiscard]] double sum(const Line& line, double value);

}  // namespace ring_attention
