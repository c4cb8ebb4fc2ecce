#include "model/heads.hpp"

#include <algorithm>
#include <cmath>

#include "ring_attention/core/error.hpp"

namespace ring_attention::model {
namespace {

/// Calls move(row of a head, the same numbers in the row of the token).
template <class Rows, class Heads, class Move>
void for_each_row(const View<Rows>& rows, const View<Heads>& heads, Move move) {
  const Shape& s = heads.shape();
  for (Index batch = 0; batch < s.batch; ++batch)
    for (Index head = 0; head < s.heads; ++head)
      for (Index token = 0; token < s.seq; ++token)
        move(heads.row(batch, head, token),
             rows.row(batch, 0, token)
                 .subspan(static_cast<std::size_t>(head * s.dim), static_cast<std::size_t>(s.dim)));
}

}  // namespace

template <class T>
Tensor<T> split_heads(View<const T> rows, Index heads) {
  const Shape& s = rows.shape();
  Tensor<T> split({s.batch, heads, s.seq, s.dim / heads});
  for_each_row(rows, split.view(), [](auto head, auto row) { std::ranges::copy(row, head.begin()); });
  return split;
}

template <class T>
Tensor<T> join_heads(View<const T> heads) {
  const Shape& s = heads.shape();
  Tensor<T> rows({s.batch, 1, s.seq, s.heads * s.dim});
  for_each_row(rows.view(), heads, [](auto head, auto row) { std::ranges::copy(head, row.begin()); });
  return rows;
}

template <class T>
void rotate(View<T> x, const TokenRanges& ranges, Index columns, double theta, int sign) {
  const Shape& s = x.shape();
  require(s.seq == count(ranges) && columns <= s.dim, "rotate: positions of these tokens");
  if (columns == 0) return;
  const std::vector<Index> where = positions(ranges);
  for (Index token = 0; token < s.seq; ++token)
    for (Index column = 0; column < columns; column += 2) {
      const double frequency = std::pow(theta, -static_cast<double>(column) / static_cast<double>(columns));
      const double angle = sign * static_cast<double>(where[static_cast<std::size_t>(token)]) * frequency;
      const T cosine = static_cast<T>(std::cos(angle)), sine = static_cast<T>(std::sin(angle));
      for (Index batch = 0; batch < s.batch; ++batch)
        for (Index head = 0; head < s.heads; ++head) {
          T* pair = x.row(batch, head, token).data() + column;
          const T a = pair[0], b = pair[1];
          pair[0] = a * cosine - b * sine;
          pair[1] = a * sine + b * cosine;
        }
    }
}

template Tensor<float> split_heads(View<const float>, Index);
template Tensor<double> split_heads(View<const double>, Index);
template Tensor<float> join_heads(View<const float>);
template Tensor<double> join_heads(View<const double>);
template void rotate(View<float>, const TokenRanges&, Index, double, int);
template void rotate(View<double>, const TokenRanges&, Index, double, int);

}  // namespace ring_attention::model
