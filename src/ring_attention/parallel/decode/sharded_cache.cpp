#include "ring_attention/parallel/decode/sharded_cache.hpp"

#include <algorithm>
#include <string>

#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

/// The tokens that come to `rank` behind a prompt.
TokenRanges tokens_behind(const Placement& prompt, Index capacity, int rank,
                          const std::optional<Tiling>& tiling) {
  TokenRanges tokens;
  if (!tiling) {
    const TokenRanges all = Placement(PlacementKind::striped, capacity, prompt.ranks()).ranges(rank);
    if (all.empty()) return {};
    const Index before = all[0].before(prompt.seq());
    if (before < all[0].count) tokens.push_back(all[0].slice(before, all[0].count - before));
    return tokens;
  }
  const std::vector<Index> cuts = tiling->cuts(capacity);
  for (std::size_t tile = 0; tile + 1 < cuts.size(); ++tile) {
    const Index begin = std::max(cuts[tile], prompt.seq()), end = cuts[tile + 1];
    if (begin >= end) continue;
    const auto holds = [&](const TokenRange& range) { return range.before(begin) > range.before(begin - 1); };
    const bool own = begin > cuts[tile] ? std::ranges::any_of(prompt.ranges(rank), holds)
                                        : static_cast<Index>(tile) % prompt.ranks() == rank;
    if (own) tokens.push_back({begin, 1, end - begin});
  }
  return tokens;
}

/// How many of them come before `position`.
Index before(const TokenRanges& tokens, Index position) {
  Index all = 0;
  for (const TokenRange& range : tokens) all += range.before(position);
  return all;
}

Index checked_capacity(Index capacity, const Placement& prompt) {
  if (prompt.seq() > capacity)
    throw InputError("a prompt of " + counted(prompt.seq(), "token"),
                     "the cache holds " + std::to_string(capacity),
                     "make it as long as the prompt and the tokens that follow");
  return capacity;
}

}  // namespace

template <class T>
ShardedCache<T>::ShardedCache(Index capacity, const Placement& prompt, int rank, View<const T> k,
                              View<const T> v, const std::optional<Tiling>& tiling)
    : capacity_(checked_capacity(capacity, prompt)),
      size_(prompt.seq()),
      prompt_(prompt.ranges(rank)),
      next_(tokens_behind(prompt, capacity, rank, tiling)),
      k_(k.shape().with_seq(count(prompt_) + count(next_))),
      v_(k_.shape().with_dim(v.shape().dim)) {
  require(k.shape().seq == count(prompt_), "ShardedCache: k has other tokens than this rank's of the prompt");
  store(k, v, 0);
}

template <class T>
bool ShardedCache<T>::append(View<const T> k, View<const T> v) {
  require(size_ < capacity_, "ShardedCache: it is full");
  const Shape due_k = k_.shape().with_seq(1), due_v = v_.shape().with_seq(1);
  require(k.shape() == due_k && v.shape() == due_v,
          "ShardedCache: k and v of a token are " + to_string(due_k) + " and " + to_string(due_v));
  const Index held = before(next_, size_++);
  const bool keeps = before(next_, size_) > held;
  if (keeps) store(k, v, count(prompt_) + held);
  return keeps;
}

template <class T>
TokenRanges ShardedCache<T>::ranges() const {
  TokenRanges ranges = prompt_;
  for (const TokenRange& range : next_) {
    const TokenRange appended = range.slice(0, range.before(size_));
    if (appended.count == 0) break;
    const bool goes_on = !ranges.empty() && ranges.back().stride == appended.stride &&
                         ranges.back().position(ranges.back().count) == appended.begin;
    if (goes_on)
      ranges.back().count += appended.count;
    else
      ranges.push_back(appended);
  }
  return ranges;
}

template <class T>
void ShardedCache<T>::store(View<const T> k, View<const T> v, Index first) {
  require(k.shape() == v.shape().with_dim(k.shape().dim),
          "ShardedCache: k and v differ in batch, heads or tokens");
  copy_tokens(k, 0, k.shape().seq, k_.view(), first);
  copy_tokens(v, 0, v.shape().seq, v_.view(), first);
}

template class ShardedCache<float>;
template class ShardedCache<double>;

}  // namespace ring_attention
