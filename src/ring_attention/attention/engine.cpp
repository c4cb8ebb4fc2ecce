#include "ring_attention/attention/engine.hpp"

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

Index require_attention_shapes(const Shape& q, const Shape& k, const Shape& v, const Shape& out) {
  require(out == q.with_dim(v.dim), "the result " + to_string(out) + " does not belong to q " + to_string(q) +
                                        " and v " + to_string(v));
  return require_attention_shapes(q, k, v);
}

}  // namespace ring_attention
