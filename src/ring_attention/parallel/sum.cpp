#include "ring_attention/parallel/sum.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/tensor.hpp"
#include "ring_attention/ring/host_memory.hpp"

namespace ring_attention {
namespace {

/// The piece of a rank of the line.
template <class T>
std::span<T> piece(const Line& line, std::span<T> all, int rank) {
  const Interval range = piece_of(std::ssize(all), rank, line.size());
  return all.subspan(static_cast<std::size_t>(range.begin),
                     static_cast<std::size_t>(range.end - range.begin));
}

}  // namespace

Interval piece_of(Index elements, int piece, int pieces) {
  const Index length = elements / pieces, longer = elements % pieces;
  const Index begin = piece * length + std::min<Index>(piece, longer);
  return {begin, begin + length + (piece < longer ? 1 : 0)};
}

template <class T>
void sum_scatter(const Line& line, std::span<const T> all, std::span<T> own) {
  const auto length = static_cast<Index>(own.size());
  require(length == std::ssize(piece(line, all, line.rank())), "sum_scatter: not the piece of this rank");
  Tensor<T> terms({line.size(), 1, 1, length});
  Pieces pieces;
  for (int rank = 0; rank < line.size(); ++rank) {
    pieces.send.push_back(std::as_bytes(piece(line, all, rank)));
    pieces.receive.push_back(std::as_writable_bytes(terms.view().row(rank, 0, 0)));
  }
  line.exchange(pieces);
  std::ranges::copy(terms.view().row(0, 0, 0), own.begin());
  for (int rank = 1; rank < line.size(); ++rank)
    HostMemory().add(own, std::span<const T>(terms.view().row(rank, 0, 0)));
}

template <class T>
void gather(const Line& line, std::span<const T> own, std::span<T> all) {
  const std::span<T> place = piece(line, all, line.rank());
  require(own.size() == place.size(), "gather: not the piece of this rank");
  if (own.data() != place.data()) std::ranges::copy(own, place.begin());
  Pieces pieces;
  for (int rank = 0; rank < line.size(); ++rank) {
    const bool other = rank != line.rank();
    pieces.send.push_back(other ? std::as_bytes(place) : std::span<std::byte>());
    pieces.receive.push_back(other ? std::as_writable_bytes(piece(line, all, rank)) : std::span<std::byte>());
  }
  line.exchange(pieces);
}

template <class T>
void sum(const Line& line, std::span<T> values) {
  if (line.size() == 1) return;
  Tensor<T> own({1, 1, 1, std::ssize(piece(line, values, line.rank()))});
  sum_scatter(line, std::span<const T>(values), own.view().elements());
  gather(line, std::span<const T>(own.view().elements()), values);
}

double sum(const Line& line, double value) {
  sum(line, std::span(&value, 1));
  return value;
}

template void sum_scatter(const Line&, std::span<const float>, std::span<float>);
template void sum_scatter(const Line&, std::span<const double>, std::span<double>);
template void gather(const Line&, std::span<const float>, std::span<float>);
template void gather(const Line&, std::span<const double>, std::span<double>);
template void sum(const Line&, std::span<float>);
template void sum(const Line&, std::span<double>);

}  // namespace ring_attention
