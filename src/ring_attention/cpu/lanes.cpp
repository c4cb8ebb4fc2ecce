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

Tensor<float> workspaces(int threads, Size floats) {
  // Each starts at a multiple of 64 bytes, and a page behind the last: the hardware prefetcher reads beyond the end of
  // an array up to the end of its page, and would take the lines that the next thread writes (5 % of two threads).
  constexpr Size line = 64 / sizeof(float), page = 4096 / sizeof(float);
  return Tensor<float>(Shape{1, 1, threads, static_cast<Index>((floats + line - 1) / line * line + page)});
}

bool Lanes::look(const Scoring& scoring, Index head, const TokenRange& queries, const TokenRange& keys,
                 const float* k, const float* v) {
  require(keys.count <= std::numeric_limits<int>::max(), "a rank holds at most 2^31 - 1 keys of a range");
  bool any = false;
  for (std::size_t i = 0; i < begin_.size(); ++i) {
    const Index query = queries.position(std::min(static_cast<Index>(i), queries.count - 1));
    const Interval seen = scoring.mask.visible(query);
    begin_[i] = static_cast<int>(keys.before(seen.begin));
    end_[i] = static_cast<int>(keys.before(seen.end));
    distance_[i] = static_cast<float>(keys.begin - (query + scoring.mask.offset));
    any = any || begin_[i] < end_[i];
  }
  span_ = {k, v, begin_.data(), end_.data()};
  if (scoring.has_alibi()) {
    span_.slope = static_cast<float>(scoring.alibi_slopes[static_cast<std::size_t>(head)]);
    span_.stride = static_cast<float>(keys.stride);
    span_.distance = distance_.data();
  }
  return any;
}

}  // namespace ring_attention::cpu
