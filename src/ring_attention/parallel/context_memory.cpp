#include "ring_attention/parallel/context_memory.hpp"

#include <algorithm>

#include "ring_attention/attention/exact/sum.hpp"

namespace ring_attention {

Index ring_bytes(const Shape& q, const KvShape& kv, bool gradients, const ElementBytes& bytes) {
  const Index o_size = q.with_dim(kv.value_dim).size(), queries = q.size() * bytes.input,
              out = o_size * bytes.value, own_and_next_kv = 2 * kv.elements() * bytes.wire;
  const Index forward = queries + out + own_and_next_kv;
  if (!gradients) return forward;
  const Index grad_out = o_size * bytes.input, dq = q.size() * bytes.value,
              own_next_and_step_dkdv = 3 * kv.elements() * bytes.value;
  return forward + grad_out + dq + own_next_and_step_dkdv;
}

Index all_gather_bytes(const KvShape& kv, int ranks, bool gradients, const ElementBytes& bytes) {
  const Index others = ranks - std::min(ranks, 2);  // whose K,V ring_bytes() does not count
  const Index kv_of_others = others * kv.elements() * bytes.wire;
  if (!gradients) return kv_of_others;
  const Index dkdv_for_others = others * kv.elements() * bytes.value, dkdv_from_others = dkdv_for_others;
  return kv_of_others + dkdv_for_others + dkdv_from_others;
}

Index ulysses_bytes(const Shape& q, const KvShape& kv, bool gradients, const ElementBytes& bytes) {
  const Index o_size = q.with_dim(kv.value_dim).size(), held_q_and_out = (q.size() + o_size) * bytes.value,
              sent_and_received =
                  2 * std::max({q.size(), o_size, kv.size(), kv.values().size()}) * bytes.value;
  const Index forward = held_q_and_out + sent_and_received;
  if (!gradients) return forward;
  const Index held_grad_out_and_dq = (q.size() + o_size) * bytes.value,
              kv_until_the_backward = kv.elements() * bytes.value;
  return forward + held_grad_out_and_dq + kv_until_the_backward;
}

Shape computed_queries(const SharedAttention& shared) {
  const HeadShare share(shared.q.heads, shared.kv.heads, shared.grid.ulysses.size);
  return {shared.q.batch, share.query.front().end, shared.tokens.queries.max_tokens(), shared.q.dim};
}

KvShape computed_keys(const SharedAttention& shared) {
  const HeadShare share(shared.q.heads, shared.kv.heads, shared.grid.ulysses.size);
  KvShape largest = shared.kv.with_seq(shared.tokens.keys.max_tokens());
  largest.heads = share.kv.front().end;
  return largest;
}

Index exact_bytes(const SharedAttention& shared, bool gradients) {
  const Shape q = computed_queries(shared);
  const KvShape kv = computed_keys(shared);
  const Index terms = std::max(shared.tokens.queries.pieces() * shared.q.heads / shared.kv.heads,
                               shared.tokens.keys.pieces());
  const auto words = [&](Index dim) { return ExactFormat::of(dim, terms).words(); };
  const Index terms_of_query = shared.tokens.keys.pieces() * shared.scoring.mask.parts();
  const auto words_of_query = [&](Index dim) { return ExactFormat::of(dim, terms_of_query).words(); };
  const auto bytes = [](Index numbers) { return numbers * static_cast<Index>(sizeof(float)); };
  if (!gradients) return bytes(q.per_row().size() * (words_of_query(kv.value_dim) + words_of_query(1)));
  // Arrays of dK,dV that hold sums where ring_bytes() and the others count floats; Ulysses sends and receives sums.
  const Index of_ring = 3, ranks = shared.grid.ring.size,
              of_gathers = shared.all_gathers_kv ? 2 * (ranks - std::min<Index>(ranks, 2)) : 0,
              of_ulysses = shared.grid.ulysses.size > 1 ? 1 : 0;
  const auto more = [&](Index dim) { return words(dim) - dim; };
  const Index state =
                  q.per_row().size() * (words_of_query(std::max(kv.dim, kv.value_dim)) + words_of_query(1)),
              dkdv = (of_ring + of_gathers + of_ulysses) * kv.per_row().size() *
                     (more(kv.dim) + more(kv.value_dim));
  return bytes(state + dkdv + kv.elements());
}

Index context_bytes(const SharedAttention& shared, bool gradients, const ElementBytes& bytes) {
  const Shape q = computed_queries(shared);
  const KvShape kv = computed_keys(shared);
  Index all = ring_bytes(q, kv, gradients, bytes);
  if (shared.all_gathers_kv) all += all_gather_bytes(kv, shared.grid.ring.size, gradients, bytes);
  if (shared.grid.ulysses.size > 1) all += ulysses_bytes(q, kv, gradients, bytes);
  return all;
}

}  // namespace ring_attention
