#include "ring_attention/parallel/collectives/sum.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention {
namespace {

/// The piece of a rank of the group.
/// \param row  numbers of a row: a piece is whole rows
template <class T>
std::span<T> piece(AllToAll& group, std::span<T> all, int rank, Index row = 1) {
  const Interval rows = piece_of(std::ssize(all) / row, rank, group.size());
  return all.subspan(static_cast<std::size_t>(rows.begin * row),
                     static_cast<std::size_t>((rows.end - rows.begin) * row));
}

}  // namespace

template <class T>
void reduce_scatter(AllToAll& group, std::span<const T> all, std::span<T> own, Index row,
                    const Memory& memory) {
  const auto length = static_cast<Index>(own.size());
  require(length == std::ssize(piece(group, all, group.rank(), row)),
          "reduce_scatter: not the piece of this rank");
  Tensor<T> terms({group.size(), 1, 1, length});
  Pieces pieces;
  for (int rank = 0; rank < group.size(); ++rank) {
    pieces.send.push_back(std::as_bytes(piece(group, all, rank, row)));
    pieces.receive.push_back(std::as_writable_bytes(terms.view().row(rank, 0, 0)));
  }
  group.all_to_all(pieces);
  std::ranges::copy(terms.view().row(0, 0, 0), own.begin());
  for (int rank = 1; rank < group.size(); ++rank)
    memory.add(own, std::span<const T>(terms.view().row(rank, 0, 0)));
}

template <class T>
void all_gather(AllToAll& group, std::span<const T> own, std::span<T> all, Index row) {
  const std::span<T> place = piece(group, all, group.rank(), row);
  require(own.size() == place.size(), "all_gather: not the piece of this rank");
  if (own.data() != place.data()) std::ranges::copy(own, place.begin());
  Pieces pieces;
  for (int rank = 0; rank < group.size(); ++rank) {
    const bool other = rank != group.rank();
    pieces.send.push_back(other ? std::as_bytes(place) : std::span<std::byte>());
    pieces.receive.push_back(other ? std::as_writable_bytes(piece(group, all, rank, row))
                                   : std::span<std::byte>());
  }
  group.all_to_all(pieces);
}

template <class T>
void all_reduce(AllToAll& group, std::span<T> values) {
  if (group.size() == 1) return;
  Tensor<T> own({1, 1, 1, std::ssize(piece(group, values, group.rank()))});
  reduce_scatter(group, std::span<const T>(values), own.view().elements());
  all_gather(group, std::span<const T>(own.view().elements()), values);
}

double all_reduce(AllToAll& group, double value) {
  all_reduce(group, std::span(&value, 1));
  return value;
}

template void reduce_scatter(AllToAll&, std::span<const float>, std::span<float>, Index, const Memory&);
template void reduce_scatter(AllToAll&, std::span<const double>, std::span<double>, Index, const Memory&);
template void all_gather(AllToAll&, std::span<const float>, std::span<float>, Index);
template void all_gather(AllToAll&, std::span<const double>, std::span<double>, Index);
template void all_reduce(AllToAll&, std::span<float>);
template void all_reduce(AllToAll&, std::span<double>);

}  // namespace ring_attention
