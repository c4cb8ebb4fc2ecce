#include "ring_attention/parallel/sharded_cache.hpp"

#include <string>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {
namespace {

/// The tokens of `rank` from `begin` on, of a striped sequence of `end` tokens.
TokenRange stripe(Index begin, Index end, int rank, int ranks) {
  require(begin <= end, "stripe: it ends before it begins");
  const TokenRanges all = Placement(PlacementKind::striped, end, ranks).ranges(rank);
  if (all.empty()) return {};
  const Index before = all[0].before(begin);
  return all[0].slice(before, all[0].count - before);
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
                              View<const T> v)
    : capacity_(checked_capacity(capacity, prompt)),
      size_(prompt.seq()),
      prompt_(prompt.ranges(rank)),
      stripe_(stripe(size_, capacity, rank, prompt.ranks())),
      k_(k.shape().with_seq(count(prompt_) + stripe_.count)),
      v_(k_.shape()) {
  require(k.shape().seq == count(prompt_), "ShardedCache: k has other tokens than this rank's of the prompt");
  store(k, v, 0);
}

template <class T>
bool ShardedCache<T>::append(View<const T> k, View<const T> v) {
  require(size_ < capacity_, "ShardedCache: it is full");
  require(k.shape() == k_.shape().with_seq(1) && v.shape() == k.shape(),
          "ShardedCache: k and v of a token are " + to_string(k_.shape().with_seq(1)));
  const Index held = stripe_.before(size_++);
  const bool keeps = stripe_.before(size_) > held;
  if (keeps) store(k, v, count(prompt_) + held);
  return keeps;
}

template <class T>
TokenRanges ShardedCache<T>::ranges() const {
  TokenRanges ranges = prompt_;
  const TokenRange appended = stripe_.slice(0, stripe_.before(size_));
  if (appended.count == 0) return ranges;
  const bool goes_on = !ranges.empty() && ranges.back().stride == appended.stride &&
                       ranges.back().position(ranges.back().count) == appended.begin;
  if (goes_on)
    ranges.back().count += appended.count;
  else
    ranges.push_back(appended);
  return ranges;
}

template <class T>
void ShardedCache<T>::store(View<const T> k, View<const T> v, Index first) {
  require(k.shape() == v.shape(), "ShardedCache: k and v differ in shape");
  copy_tokens(k, 0, k.shape().seq, k_.view(), first);
  copy_tokens(v, 0, v.shape().seq, v_.view(), first);
}

template class ShardedCache<float>;
template class ShardedCache<double>;

}  // namespace ring_attention
