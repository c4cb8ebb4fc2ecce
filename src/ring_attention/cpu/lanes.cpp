#include "ring_attention/cpu/lanes.hpp"

#include <algorithm>

#include "ring_attention/attention/bias.hpp"
#include "ring_attention/attention/dropout_hash.hpp"
#include "ring_attention/core/blocks.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention::cpu {

std::vector<QueryTile> query_tiles(const TokenRanges& queries, int lanes) {
  std::vector<QueryTile> tiles;
  for_each_block(queries, lanes,
                 [&](const TokenRange& range, Index first) { tiles.push_back({range, first}); });
  return tiles;
}

QueryIntervals::QueryIntervals(const Mask& mask, const TokenRanges& queries)
    : mask_(mask), queries_(count(queries)) {
  if (mask.sets == nullptr) return;
  const std::vector<Index> all = positions(queries);
  for (int part = 0; part < mask.parts(); ++part)
    for (const Index query : all) table_.push_back(mask.visible(query, part));
}

template <class T>
Tensor<T> workspaces(int threads, Size elements) {
  require(threads >= 1, "an engine has at least one thread");
  // Each starts at a multiple of 64 bytes, and a page behind the last: the hardware's prefetcher runs on behind the end
  // of an array as far as its page goes, and would take the lines that the next thread is writing (5 % of two threads).
  constexpr Size line = 64 / sizeof(T), page = 4096 / sizeof(T);
  return Tensor<T>(Shape{1, 1, threads, static_cast<Index>((elements + line - 1) / line * line + page)});
}

namespace {

/// The pairs of a tile and a range of keys in an array of a row for each query and a column for each key.
template <class T>
PairMatrix<T> pairs_of(const View<T>& array, Index batch, Index head, const QueryTile& tile,
                       const TokenRange& keys) {
  if (array.size() == 0) return {};
  return {bias_row(array, batch, head, tile.first) + keys.begin, static_cast<Offset>(array.shape().dim),
          static_cast<Offset>(keys.stride), static_cast<int>(tile.queries.count)};
}

}  // namespace

template <class T>
bool Lanes<T>::look(const Scoring& scoring, const QueryIntervals& intervals, Index batch, Index head,
                    const QueryTile& tile, int part, const TokenRange& keys, const T* k, const T* v,
                    const View<const T>& bias, const View<T>& grad_bias) {
  const Dropout& dropout = scoring.dropout;
  bool any = false;
  const auto queries = static_cast<std::size_t>(tile.queries.count);
  for (std::size_t i = 0; i < queries; ++i) {
    const Index query = tile.queries.position(static_cast<Index>(i));
    const Interval seen = intervals.visible(tile, static_cast<Index>(i), part);
    begin_[i] = static_cast<int>(keys.before(seen.begin));
    end_[i] = static_cast<int>(keys.before(seen.end));
    distance_[i] = static_cast<T>(keys.begin - (query + scoring.mask.offset));
    any = any || begin_[i] < end_[i];
  }
  std::fill(begin_.begin() + queries, begin_.end(), begin_[queries - 1]);
  std::fill(end_.begin() + queries, end_.end(), end_[queries - 1]);
  std::fill(distance_.begin() + queries, distance_.end(), distance_[queries - 1]);
  span_ = {k, v, begin_.data(), end_.data()};
  span_.softcap = static_cast<T>(scoring.softcap);
  if (scoring.has_alibi()) {
    span_.slope = static_cast<T>(scoring.alibi_slopes[static_cast<std::size_t>(head)]);
    span_.stride = static_cast<T>(keys.stride);
    span_.distance = distance_.data();
  }
  span_.bias = pairs_of(bias, batch, head, tile, keys);
  span_.grad_bias = pairs_of(grad_bias, batch, head, tile, keys);
  if (any && dropout.drops()) {
    for (Index i = 0; i < tile.queries.count; ++i) {
      const DropoutRow row = dropout.row(batch, head, tile.queries.position(i));
      low_[static_cast<std::size_t>(i)] = row.low;
      high_[static_cast<std::size_t>(i)] = row.high;
    }
    span_.dropout = {low_.data(),
                     high_.data(),
                     dropout_key(static_cast<unsigned>(keys.begin)),
                     dropout_key(static_cast<unsigned>(keys.stride)),
                     static_cast<unsigned>(dropout.threshold()),
                     static_cast<T>(dropout.scale())};
  }
  return any;
}

template Tensor<float> workspaces(int, Size);
template Tensor<double> workspaces(int, Size);
template class Lanes<float>;
template class Lanes<double>;

}  // namespace ring_attention::cpu
