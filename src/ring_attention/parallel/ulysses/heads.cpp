#include "ring_attention/parallel/ulysses/heads.hpp"

#include <string>

#include "ring_attention/core/counted.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention {
namespace {

bool divides(Index divisor, Index number) { return number % divisor == 0; }

/// "1, 2 or 4": none above 1024.
std::string allowed_ranks(Index query_heads, Index kv_heads) {
  std::vector<Index> allowed;
  for (Index ranks = 1; ranks <= std::min<Index>(query_heads, 1024); ++ranks)
    if (can_share_heads(query_heads, kv_heads, ranks)) allowed.push_back(ranks);
  std::string text;
  for (std::size_t i = 0; i < allowed.size(); ++i) {
    if (i > 0) text += i + 1 == allowed.size() ? " or " : ", ";
    text += std::to_string(allowed[i]);
  }
  return text;
}

}  // namespace

std::vector<Interval> shared_heads(Index heads, int ranks) {
  std::vector<Interval> of_ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    const Index first = rank * heads / ranks;
    of_ranks.push_back({first, first + std::max<Index>(1, heads / ranks)});
  }
  return of_ranks;
}

bool can_share_heads(Index query_heads, Index kv_heads, Index ranks) {
  return ranks >= 1 && divides(ranks, query_heads) && (divides(ranks, kv_heads) || divides(kv_heads, ranks));
}

void require_shareable(Index query_heads, Index kv_heads, int ranks) {
  require(kv_heads >= 1 && within(query_heads, 1, largest_count) && divides(kv_heads, query_heads),
          "Ulysses: the K,V heads do not divide the query heads");
  if (can_share_heads(query_heads, kv_heads, ranks)) return;
  const std::string number = std::to_string(ranks);
  const std::string why =
      ranks < 1             ? "at least one rank computes"
      : ranks > query_heads ? "more than " + counted(query_heads, "query head")
      : !divides(ranks, query_heads)
          ? number + " does not divide " + counted(query_heads, "query head")
          : number + " neither divides nor is a multiple of " + counted(kv_heads, "KV head");
  throw InputError("Ulysses over " + counted(ranks, "rank"), why,
                   "use " + allowed_ranks(query_heads, kv_heads));
}

}  // namespace ring_attention
