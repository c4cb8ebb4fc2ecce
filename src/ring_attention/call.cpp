#include "ring_attention/call.hpp"

#include <algorithm>
#include <array>
#include <iomanip>
#include <limits>
#include <sstream>
#include <utility>

#include "ring_attention/attention/scoring_arguments.hpp"
#include "ring_attention/core/bf16.hpp"
#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/mpi/agreement.hpp"

namespace ring_attention {
namespace {

/// The type of an array's elements, in words.
template <class T>
const char* numbers_of() {
  if constexpr (std::is_same_v<T, Bf16>) return "bf16";
  if constexpr (std::is_same_v<T, Fp16>) return "fp16";
  return sizeof(T) == 4 ? "4-byte" : "8-byte";
}

/// What must be the same on all ranks, one line each.
template <class T>
std::string text_of(const Call<T>& call, const SharedAttention& shared) {
  const Shape &q = shared.q, &k = shared.kv;
  const auto& [queries, keys] = shared.tokens;
  std::ostringstream text;
  text << std::setprecision(std::numeric_limits<double>::max_digits10) << call.name << " of "
       << numbers_of<T>() << " numbers\nbatch " << q.batch << "\nheads " << q.heads << "\nKV heads "
       << k.heads << "\ndim " << q.dim << "\ndim of v " << shared.kv.value_dim << "\nqueries "
       << queries.seq() << ' ' << name(queries.kind()) << "\npieces of the queries " << queries.pieces()
       << "\nkeys " << keys.seq() << ' ' << name(keys.kind()) << "\npieces of the keys " << keys.pieces()
       << "\nqueries in ranges of hash " << queries.hash() << "\nkeys in ranges of hash " << keys.hash()
       << "\npartition " << call.division.kv << "\nranks that share heads " << shared.grid.ulysses.size
       << "\ngradient of lse " << (call.grad_lse ? "given" : "none") << '\n'
       << call.computes << '\n';
  return text.str() + text_of(shared.scoring, shared.bias);
}

/// Where this rank's arguments first differ from those of rank 0. \throws InputError
void require_same_arguments(int rank, const std::string& mine, const std::string& of_rank_0) {
  std::istringstream here(mine), there(of_rank_0);
  for (std::string line, due; std::getline(here, line) && std::getline(there, due);)
    if (line != due)
      throw InputError("the ranks disagree: rank 0 has " + due + ", rank " + std::to_string(rank) + " has " +
                       line);
}

}  // namespace

template <class T>
SharedAttention Call<T>::shared(int rank, int ranks) const {
  const Shape& k = arrays.k.shape();
  return {division.grid(rank, ranks),
          division,
          placement,
          arrays.q.shape().with_seq(placement.queries.seq()),
          {k.with_seq(placement.keys.seq()), arrays.v.shape().dim},
          scoring,
          false,
          arrays.bias ? std::optional(arrays.bias->shape()) : std::nullopt};
}

template <class T>
void check_arguments(const Check& check, const Call<T>& call, const SharedAttention& shared) {
  const Shape &q = call.arrays.q.shape(), &k = call.arrays.k.shape(), &v = call.arrays.v.shape();
  const auto& [queries, keys] = shared.tokens;
  const RankGrid& grid = shared.grid;
  check(std::min({q.batch, q.heads, q.dim, k.heads}) > 0 && q.heads % k.heads == 0,
        "q is " + to_string(q) + " and k " + to_string(k) +
            ": batch, heads and dim are at least 1, and the KV heads divide the heads");
  check(v.dim > 0, "v is " + to_string(v) + ": it has at least one column");
  for (const Shape& rows : {q, call.out_shape()})
    check(fits(rows.with_seq(queries.seq())) && fits(rows.with_seq(keys.seq())),
          "more than 2^48 elements in all");
  check(std::max({q.batch, q.heads, q.dim, v.dim, keys.max_tokens()}) <= largest_count,
        "batch, heads, dim, and the keys of a rank, are at most 2^31 - 1");
  call.division.require_shareable(q.heads, k.heads, grid.ulysses.size);
  check(queries.ranks() == grid.ring.size && keys.ranks() == grid.ring.size,
        "the placement is not for the " + counted(grid.ring.size, "rank") +
            (grid.ulysses.size == 1 ? " of the communicator" : " of the ring"));
  if (const std::optional<Shape>& term = shared.bias)
    check(fits(*term), "bias is " + to_string(*term) + ": more than 2^48 elements");
  call.each_array(
      shared, [&](const char* name, const auto& array, const Shape& due) { check.array(name, array, due); });
  const std::string fault = fault_of(shared.scoring, q.heads, std::numeric_limits<SumOf<T>>::max());
  check(fault.empty(), fault);
  if (const auto& sets = shared.scoring.mask.sets) {
    const std::optional<std::string> wrong = sets->fault(queries.seq(), keys.seq());
    check(!wrong, wrong.value_or(""));
  }
}

template <class T>
AgreedCall agreed(AttentionRanks& ranks, const Call<T>& call,
                  const std::function<void(const Check&, const SharedAttention&)>& check_more,
                  const std::unordered_set<std::string>& completed) {
  const Check check(ranks.rank());
  std::optional<AgreedCall> mine;
  const auto check_own = [&] {
    SharedAttention shared = call.shared(ranks.rank(), ranks.size());
    std::string text = text_of(call, shared);
    const bool first = !completed.contains(text);
    mine = AgreedCall{std::move(shared), std::move(text), first};
    check_arguments(check, call, mine->shared);
  };
  bool right = true;
  try {
    check_own();
    check_more(check, mine->shared);
  } catch (const InputError&) {
    right = false;
  } catch (const std::bad_alloc&) {
    right = false;
  }
  const std::uint64_t digest = mine ? std::hash<std::string>()(mine->text) : 0;
  std::array<std::uint64_t, 4> most{right ? 0U : 1U, mine && !mine->first ? 0U : 1U, digest, ~digest};
  ranks.unite(std::as_writable_bytes(std::span(most)));
  if (most[0] == 0 && most[2] == ~most[3]) {
    mine->first = most[1] != 0;
    return std::move(*mine);
  }

  // A rank is wrong, or ranks differ: which, and why.
  agree(ranks, [&] { check_own(); });
  const std::string of_rank_0 = text_of(0, ranks.rank(), unite_of(ranks), mine->text);
  agree(ranks, [&] {
    require_same_arguments(ranks.rank(), mine->text, of_rank_0);
    check_more(check, mine->shared);
  });
  return std::move(*mine);
}

#define RING_ATTENTION_INSTANTIATE(T)                                                          \
  template SharedAttention Call<T>::shared(int, int) const;                                    \
  template void check_arguments(const Check&, const Call<T>&, const SharedAttention&);         \
  template AgreedCall agreed(AttentionRanks&, const Call<T>&,                                  \
                             const std::function<void(const Check&, const SharedAttention&)>&, \
                             const std::unordered_set<std::string>&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
RING_ATTENTION_INSTANTIATE(Bf16)
RING_ATTENTION_INSTANTIATE(Fp16)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention
