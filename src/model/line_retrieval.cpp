#include "model/line_retrieval.hpp"

#include <algorithm>
#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention::model {
namespace {

constexpr std::uint64_t value_tag = 1, query_tag = 2;

}  // namespace

LineRetrieval::LineRetrieval(std::uint64_t seed, Index seq, Index query_share)
    : seed_(seed),
      seq_(seq),
      queries_(std::max<Index>(1, seq / (2 * query_share))),
      lines_((seq - 2 * queries_) / 2) {
  if (lines_ < 1)
    throw InputError("line retrieval", std::to_string(seq) + " tokens are too few for a line and a query",
                     "use 4 or more");
  if (lines_ > keys)
    throw InputError("line retrieval",
                     std::to_string(lines_) + " lines of " + std::to_string(keys) + " different keys",
                     "use a shorter sequence");
}

Index LineRetrieval::key(Index sequence, Index line) const {
  return permuted(seed_, sequence, line, key_bits);
}

Index LineRetrieval::value(Index sequence, Index line) const {
  return static_cast<Index>(hash(seed_, sequence, line, value_tag) % values);
}

Index LineRetrieval::asked_line(Index sequence, Index position) const {
  const Index query = (position - (seq_ - 2 * queries_)) / 2;
  return static_cast<Index>(hash(seed_, sequence, query, query_tag) % static_cast<std::uint64_t>(lines_));
}

Index LineRetrieval::token(Index sequence, Index position) const {
  constexpr Index ask = keys + values;
  const Index queries_begin = seq_ - 2 * queries_, lines_begin = queries_begin - 2 * lines_;
  if (position < lines_begin) return ask;
  const bool second = (position - lines_begin) % 2 == 1;
  if (position < queries_begin) {
    const Index line = (position - lines_begin) / 2;
    return second ? keys + value(sequence, line) : key(sequence, line);
  }
  return second ? ask : key(sequence, asked_line(sequence, position));
}

Index LineRetrieval::label(Index sequence, Index position) const {
  const Index in_queries = position - (seq_ - 2 * queries_);
  return in_queries >= 0 && in_queries % 2 == 1 ? value(sequence, asked_line(sequence, position)) : none;
}

Curriculum line_retrieval_curriculum() {
  return {{64, 64, 200}, {256, 16, 100}, {1024, 4, 60}, {4096, 1, 40}};
}

}  // namespace ring_attention::model
