#include "ring_attention/parallel/sum.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/memory.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention {
namespace {

/// The piece of a rank of the group.
template <class T>
std::span<T> piece(AllToAll& group, std::span<T> all, int rank) {
  const Interval range = piece_of(std::ssize(all), rank, group.size());
  return all.subspan(static_cast<std::size_t>(range.begin),
                     static_cast<std::size_t>(range.end - range.begin));
}

}  // namespace

template <class T>
void reduce_scatter(AllToAll& group, std::span<const T> all, std::span<T> own) {
  const auto length = static_cast<Index>(own.size());
  require(length == std::ssize(piece(group, all, group.rank())),
          "reduce_scatter: not the piece of this rank");
  Tensor<T> terms({group.size(), 1, 1, length});
  Pieces pieces;
  for (int rank = 0; rank < group.size(); ++rank) {
    pieces.send.push_back(std::as_bytes(piece(group, all, rank)));
    pieces.receive.push_back(std::as_writable_bytes(terms.view().row(rank, 0, 0)));
  }
  group.exchange(pieces);
  std::ranges::copy(terms.view().row(0, 0, 0), own.begin());
  for (int rank = 1; rank < group.size(); ++rank)
    host_memory().add(own, std::span<const T>(terms.view().row(rank, 0, 0)));
}

template <class T>
void all_gather(AllToAll& group, std::span<const T> own, std::span<T> all) {
  const std::span<T> place = piece(group, all, group.rank());
  require(own.size() == place.size(), "all_gather: not the piece of this rank");
  if (own.data() != place.data()) std::ranges::copy(own, place.begin());
  Pieces pieces;
  for (int rank = 0; rank < group.size(); ++rank) {
    const bool other = rank != group.rank();
    pieces.send.push_back(other ? std::as_bytes(place) : std::span<std::byte>());
    pieces.receive.push_back(other ? std::as_writable_bytes(piece(group, all, rank))
                                   : std::span<std::byte>());
  }
  group.exchange(pieces);
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

template void reduce_scatter(AllToAll&, std::span<const float>, std::span<float>);
template void reduce_scatter(AllToAll&, std::span<const double>, std::span<double>);
template void all_gather(AllToAll&, std::span<const float>, std::span<float>);
template void all_gather(AllToAll&, std::span<const double>, std::span<double>);
template void all_reduce(AllToAll&, std::span<float>);
template void all_reduce(AllToAll&, std::span<double>);

}  // namespace ring_attention
