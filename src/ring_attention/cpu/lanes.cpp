#include "ring_attention/cpu/lanes.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"

namespace ring_attention::cpu {

std::vector<QueryTile> query_tiles(const TokenRanges& queries, int lanes) {
  std::vector<QueryTile> tiles;
  for_each_block(queries, lanes, [&](const TokenRange& range, Index first) {
    tiles.push_back({range, first});
  });
  return tiles;
}

template <class T>
Tensor<T> workspaces(int threads, Size elements) {
  // Each starts at a multiple of 64 bytes, and a page behind the last: the hardware's prefetcher runs on behind the end
  // of an array as far as its page goes, and would take the lines that the next thread is writing (5 % of two threads).
  constexpr Size line = 64 / sizeof(T), page = 4096 / sizeof(T);
  return Tensor<T>(Shape{1, 1, threads, static_cast<Index>((elements + line - 1) / line * line + page)});
}

template <class T>
bool Lanes<T>::look(const Scoring& scoring, Index head, const TokenRange& queries, const TokenRange& keys,
                    const T* k, const T* v) {
  require(keys.count <= std::numeric_limits<int>::max(), "a rank holds at most 2^31 - 1 keys of a run");
  bool any = false;
  for (std::size_t i = 0; i < begin_.size(); ++i) {
    const Index query = queries.position(std::min(static_cast<Index>(i), queries.count - 1));
    const Interval seen = scoring.mask.visible(query);
    begin_[i] = static_cast<int>(keys.before(seen.begin));
    end_[i] = static_cast<int>(keys.before(seen.end));
    distance_[i] = static_cast<T>(keys.begin - (query + scoring.mask.offset));
    any = any || begin_[i] < end_[i];
  }
  span_ = {k, v, begin_.data(), end_.data()};
  if (scoring.has_alibi()) {
    span_.slope = static_cast<T>(scoring.alibi_slopes[static_cast<std::size_t>(head)]);
    span_.stride = static_cast<T>(keys.stride);
    span_.distance = distance_.data();
  }
  return any;
}

template Tensor<float> workspaces(int, Size);
template Tensor<double> workspaces(int, Size);
template class Lanes<float>;
template class Lanes<double>;

}  // namespace ring_attention::cpu
