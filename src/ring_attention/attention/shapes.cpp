#include "ring_attention/attention/shapes.hpp"

#include <algorithm>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention {

Index require_attention_shapes(const Shape& q, const Shape& k, const Shape& v) {
  const std::string shapes = "q " + to_string(q) + ", k " + to_string(k) + ", v " + to_string(v);
  require(fits(q) && fits(k) && fits(v), "more than 2^48 elements: " + shapes);
  require(k == v.with_dim(k.dim), "k and v differ in batch, heads or tokens: " + shapes);
  require(q.batch == k.batch && q.dim == k.dim, "q and k differ in batch or dim: " + shapes);
  require(k.heads > 0 && q.heads % k.heads == 0, "the KV heads must divide the query heads: " + shapes);
  return q.heads / k.heads;
}

void require_queries(const Shape& q, const TokenRanges& at, const Shape& bias) {
  const bool fits = (bias.batch == 1 || bias.batch == q.batch) &&
                    (bias.heads == 1 || bias.heads == q.heads) && bias.seq == q.seq;
  require(q.seq == count(at), "q and its ranges have different numbers of tokens");
  require(bias.size() == 0 || fits, "a bias " + to_string(bias) + " for queries " + to_string(q));
}

Index require_keys(const EngineShapes& begun, const Shape& k, const Shape& v, const TokenRanges& at) {
  const auto& [q, out, bias] = begun;
  require(out == q.with_dim(v.dim), "the result " + to_string(out) + " does not belong to q " + to_string(q) +
                                        " and v " + to_string(v));
  require(k.seq == count(at), "k and its ranges have different numbers of tokens");
  require(k.seq <= largest_count, "a rank holds at most 2^31 - 1 keys");
  require(bias.size() == 0 ||
              std::ranges::all_of(
                  at, [&](const TokenRange& keys) { return keys.count == 0 || keys.end() <= bias.dim; }),
          "the bias has no column for the last key");
  return require_attention_shapes(q, k, v);
}

}  // namespace ring_attention
