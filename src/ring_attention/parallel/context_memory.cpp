#include "ring_attention/parallel/context_memory.hpp"

#include <algorithm>

namespace ring_attention {

std::vector<RankArray> ring_arrays(const Shape& q, const Shape& kv, bool gradients,
                                   const ElementBytes& bytes) {
  std::vector<RankArray> arrays{{"q", q.size() * bytes.input},
                                {"out", q.size() * bytes.value},
                                {"K,V of this rank and of the next one", 4 * kv.size() * bytes.wire}};
  if (gradients) {
    arrays.push_back({"dO", q.size() * bytes.input});
    arrays.push_back({"dQ", q.size() * bytes.value});
    arrays.push_back({"dK,dV of two ranks, and of one step", 6 * kv.size() * bytes.value});
  }
  return arrays;
}

std::vector<RankArray> all_gather_arrays(const Shape& kv, int ranks, bool gradients,
                                         const ElementBytes& bytes) {
  const Index of_a_parcel = std::min(ranks, 2);  // ranks whose K,V are counted as a ring's already
  std::vector<RankArray> arrays{
      {"K,V of the other ranks", 2 * (ranks - of_a_parcel) * kv.size() * bytes.value}};
  if (gradients)
    arrays.push_back(
        {"dK,dV for the other ranks and from them", 4 * (ranks - of_a_parcel) * kv.size() * bytes.value});
  return arrays;
}

std::vector<RankArray> ulysses_arrays(const Shape& q, const Shape& kv, bool gradients,
                                      const ElementBytes& bytes) {
  std::vector<RankArray> arrays{
      {"q and out in the other layout", 2 * q.size() * bytes.value},
      {"an array on its way, sent and received", 2 * std::max(q.size(), kv.size()) * bytes.value}};
  if (gradients) {
    arrays.push_back({"dO and dQ in the other layout", 2 * q.size() * bytes.value});
    arrays.push_back({"K,V until the backward", 2 * kv.size() * bytes.value});
  }
  return arrays;
}

Shape computed_queries(const SharedAttention& shared) {
  const HeadShare share(shared.q.heads, shared.kv.heads, shared.grid.ulysses.size);
  return {shared.q.batch, share.query.front().end, shared.tokens.queries.max_tokens(), shared.q.dim};
}

Shape computed_keys(const SharedAttention& shared) {
  const HeadShare share(shared.q.heads, shared.kv.heads, shared.grid.ulysses.size);
  return {shared.kv.batch, share.kv.front().end, shared.tokens.keys.max_tokens(), shared.kv.dim};
}

Index context_bytes(const SharedAttention& shared, bool gradients, const ElementBytes& bytes) {
  const Shape q = computed_queries(shared), kv = computed_keys(shared);
  Index all = 0;
  const auto add = [&](const std::vector<RankArray>& arrays) {
    for (const RankArray& array : arrays) all += array.bytes;
  };
  add(ring_arrays(q, kv, gradients, bytes));
  if (shared.gathers) add(all_gather_arrays(kv, shared.grid.ring.size, gradients, bytes));
  if (shared.grid.ulysses.size > 1) add(ulysses_arrays(q, kv, gradients, bytes));
  return all;
}

}  // namespace ring_attention
