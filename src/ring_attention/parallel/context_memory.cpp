#include "ring_attention/parallel/context_memory.hpp"

#include <algorithm>

#include "ring_attention/attention/exact/sum.hpp"

namespace ring_attention {

Index ring_bytes(const Shape& q, const KvShape& kv, bool gradients, const ElementBytes& bytes,
                 int more_shards) {
  const Index o_size = q.with_dim(kv.value_dim).size(), queries = q.size() * bytes.input,
              out = o_size * bytes.value, own_and_other_kv = (2 + more_shards) * kv.elements() * bytes.wire;
  const Index forward = queries + out + own_and_other_kv;
  if (!gradients) return forward;
  const Index grad_out = o_size * bytes.input, dq = q.size() * bytes.value,
              own_next_and_step_dkdv = 3 * kv.elements() * bytes.value,
              dkdv_for_and_from_others = 2 * more_shards * kv.elements() * bytes.value;
  return forward + grad_out + dq + own_next_and_step_dkdv + dkdv_for_and_from_others;
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
  return {shared.q.batch, shared.q.heads / shared.grid.ulysses.size, shared.tokens.queries.max_tokens(),
          shared.q.dim};
}

KvShape computed_keys(const SharedAttention& shared) {
  KvShape largest = shared.kv.with_seq(shared.tokens.keys.max_tokens());
  largest.heads = std::max<Index>(1, shared.kv.heads / shared.grid.ulysses.size);
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
  const Index of_ring = 3, of_gathers = 2 * shared.division.more_shards(shared.grid.ring.size),
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
  Index all = ring_bytes(q, kv, gradients, bytes, shared.division.more_shards(shared.grid.ring.size));
  if (shared.grid.ulysses.size > 1) all += ulysses_bytes(q, kv, gradients, bytes);
  return all;
}

}  // namespace ring_attention
