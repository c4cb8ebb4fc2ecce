#include "support/team.hpp"

#include <algorithm>
#include <functional>

#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/core/mix.hpp"
#include "ring_attention/parallel/ulysses/heads.hpp"
#include "ring_attention/ring/kv_hops.hpp"

namespace ring_attention::test {

namespace {

/// Pieces dealt by a hash: shards of many ranges and of different lengths, also without tokens.
Placement dealt(const std::vector<Index>& cuts, int ranks) {
  std::vector<TokenRanges> shards(static_cast<std::size_t>(ranks));
  for (std::size_t piece = 0; piece + 1 < cuts.size(); ++piece)
    shards[mix(piece + cuts.size()) % shards.size()].push_back(
        {cuts[piece], 1, cuts[piece + 1] - cuts[piece]});
  return Placement(std::move(shards));
}

}  // namespace

Placements Team::tokens(const Case& what) const {
  const Mask& mask = what.scoring.mask;
  const auto placed = [&](Index seq, Index offset) {
    const bool balanced = what.kind == PlacementKind::balanced;
    if (tile == 0 && !balanced) return Placement(what.kind, seq, rings);
    const Tiling tiling = tile == 0 ? Tiling(3) : Tiling(tile, mask.documents, offset);
    return balanced ? dealt(tiling.cuts(seq), rings) : Placement(what.kind, tiling.cuts(seq), rings);
  };
  return {placed(what.queries, mask.offset), placed(what.keys, 0)};
}

std::string to_string(const Team& team) {
  return "U = " + std::to_string(team.ulysses) + ", R = " + std::to_string(team.rings) +
         (team.all_gathers_kv ? ", all-gather" : "");
}

template <class T>
Whole<T> zeros(const Case& what, bool backward) {
  Whole<T> all{{Tensor<T>(what.out()), Tensor<T>(what.q().per_row())}, {}};
  if (backward)
    all.gradients = {Tensor<T>(what.q()),
                     Tensor<T>(what.kv()),
                     Tensor<T>(what.kv().values()),
                     {{Tensor<T>(what.bias().value_or(Shape{}))}, what.scoring.zero_gradients()}};
  return all;
}

template <class T>
void put_rank(Whole<T>& all, const Whole<T>& part, const TokenRanges& queries, const TokenRanges& keys) {
  const auto put = [](Tensor<T>& whole, const Tensor<T>& rows, const TokenRanges& ranges) {
    if (whole.size() == 0) return;
    const Shape due = whole.shape().with_seq(count(ranges));
    EXPECT_EQ(to_string(rows.shape()), to_string(due));
    if (rows.shape() == due) put_rows(whole, rows, ranges);
  };
  put(all.attended.out, part.attended.out, queries);
  put(all.attended.lse, part.attended.lse, queries);
  put(all.gradients.q, part.gradients.q, queries);
  put(all.gradients.k, part.gradients.k, keys);
  put(all.gradients.v, part.gradients.v, keys);
  put(all.gradients.bias, part.gradients.bias, queries);
  each_number(
      [](const char* name, std::span<double> sums, std::span<const double> own) {
        EXPECT_EQ(sums.size(), own.size()) << name;
        std::ranges::transform(sums, own, sums.begin(), std::plus());
      },
      all.gradients, part.gradients);
}

// ---- checks ---------------------------------------------------------------------------------------------------

template <class T>
testing::AssertionResult same_bits(const Whole<T>& a, const Whole<T>& b) {
  if (const auto verdict = same_bits(a.attended, b.attended); !verdict) return verdict;
  const bool bias_by_head = a.gradients.bias.shape().heads == a.gradients.q.shape().heads;
  const auto differ = [&](Tensor<T> Gradients<T>::* array) {
    return !bitwise_equal(a.gradients.*array, b.gradients.*array);
  };
  for (const auto& [name, array] :
       {std::pair{"dq", &Gradients<T>::q}, {"dk", &Gradients<T>::k}, {"dv", &Gradients<T>::v}})
    if (differ(array)) return testing::AssertionFailure() << name << " differs in its bits";
  if (bias_by_head && differ(&Gradients<T>::bias))
    return testing::AssertionFailure() << "dbias differs in its bits";
  return testing::AssertionSuccess();
}

template <class T>
testing::AssertionResult agrees(const Whole<T>& got, const Problem<T>& problem) {
  return agrees(got.attended, problem);
}
template <class T>
testing::AssertionResult agrees(const Whole<T>& got, const GradientProblem<T>& problem) {
  if (const auto verdict = agrees(got.attended, problem.forward); !verdict) return verdict;
  return agrees(got.gradients, problem);
}

template <class T>
void expect_same_run(const RankRun<T>& got, const RankRun<T>& want) {
  EXPECT_TRUE(same_bits(got.attended, want.attended));
  EXPECT_TRUE(same_bits(got.gradients, want.gradients));
  for (const auto member : {&RankRun<T>::forward_pieces, &RankRun<T>::pieces, &RankRun<T>::forward_kv,
                            &RankRun<T>::kv, &RankRun<T>::gradient}) {
    EXPECT_EQ((got.*member).messages_sent, (want.*member).messages_sent);
    EXPECT_EQ((got.*member).bytes_sent, (want.*member).bytes_sent);
    EXPECT_EQ((got.*member).bytes_received, (want.*member).bytes_received);
  }
}

namespace {

/// What messages hold.
struct Traffic {
  Index messages = 0, sent = 0, received = 0;

  Traffic& add(Index bytes_sent, Index bytes_received, Index times = 1) {
    sent += times * bytes_sent;
    received += times * bytes_received;
    return *this;
  }
};

testing::AssertionResult is_due(const char* what, const TransportStatistics& got, const Traffic& due,
                                bool count_messages = true) {
  if ((!count_messages || got.messages_sent == due.messages) && got.bytes_sent == due.sent &&
      got.bytes_received == due.received)
    return testing::AssertionSuccess();
  return testing::AssertionFailure() << what << ": sent " << got.bytes_sent << " bytes in "
                                     << got.messages_sent << " messages and received " << got.bytes_received
                                     << "; due were " << due.sent << ", " << due.messages << " and "
                                     << due.received;
}

/// K,V of a rank in a ring: at each of N - 1 hops the parcel that is here and goes on, if it has any tokens.
Traffic ring_kv(const Case& what, const Placements& tokens, const Ring& ring, Index token_bytes) {
  const std::vector<int> hops =
      what.every_hop ? std::vector<int>() : kv_hops(what.scoring.mask, tokens.queries, tokens.keys);
  const auto parcel = [&](int owner, int hop) {
    const bool travels = hops.empty() || hop <= hops[static_cast<std::size_t>(owner)];
    return travels ? tokens.keys.tokens(owner) * token_bytes : 0;
  };
  Traffic due;
  for (int hop = 1; hop < ring.size; ++hop) {
    const Index sent = parcel(ring.owner(hop - 1), hop);
    due.messages += sent > 0 ? 1 : 0;
    due.add(sent, parcel(ring.owner(hop), hop));
  }
  return due;
}

/// dK,dV of a rank in a ring: once for every rank that has tokens, its own included; nothing in a ring of one.
Traffic ring_gradients(const Placement& keys, Index token_bytes) {
  if (keys.ranks() == 1) return {};
  const Index all = keys.seq() * token_bytes;
  Index messages = 0;
  for (int rank = 0; rank < keys.ranks(); ++rank) messages += keys.tokens(rank) > 0 ? 1 : 0;
  return {messages, all, all};
}

/// The slices of one array between the ranks that share heads. \param back  from heads to tokens
Traffic slices(const RankGrid& grid, const Placement& tokens, const std::vector<Interval>& heads,
               Index row_bytes, bool back) {
  const std::vector<Index> slices = grid.tokens(tokens);
  const auto own = static_cast<std::size_t>(grid.ulysses.index(grid.rank));
  const auto size = [&](std::size_t rank) { return heads[rank].end - heads[rank].begin; };
  Traffic due;
  for (std::size_t rank = 0; rank < heads.size(); ++rank)
    if (rank != own) due.add(size(rank) * slices[own] * row_bytes, size(own) * slices[rank] * row_bytes);
  if (back) std::swap(due.sent, due.received);
  return due;
}

/// The messages of a pass between the ranks that share heads: forward, or forward and backward.
/// \param input, output  bytes of a number of q, k, v and dO; of a result
Traffic heads_of(const Case& what, const RankGrid& grid, const Placements& tokens, Index input, Index output,
                 bool both) {
  const std::vector<Interval> query_heads = shared_heads(what.q().heads, grid.ulysses.size),
                              kv_heads = shared_heads(what.kv_heads, grid.ulysses.size);
  const Index of_k = what.batch * what.dim, of_v = what.batch * what.kv().value_dim;
  Traffic due;
  const auto add = [&](const Traffic& array, Index times) { due.add(array.sent, array.received, times); };
  add(slices(grid, tokens.queries, query_heads, of_k * input, false), 1);        // q
  add(slices(grid, tokens.keys, kv_heads, (of_k + of_v) * input, false), 1);     // k, v
  add(slices(grid, tokens.queries, query_heads, of_v * output, true), 1);        // out
  add(slices(grid, tokens.queries, query_heads, what.batch * output, true), 1);  // lse
  if (!both) return due;
  add(slices(grid, tokens.queries, query_heads, of_v * input, false), 1);     // dO
  add(slices(grid, tokens.queries, query_heads, of_k * output, true), 1);     // dQ
  add(slices(grid, tokens.keys, kv_heads, (of_k + of_v) * output, true), 1);  // dK, dV
  return due;
}

/// The messages of an all-gather: K,V of the rank to all others; in the backward again, and what it adds to theirs.
Traffic gathered(const Placement& keys, int rank, Index token_bytes, Index gradient_bytes, bool both) {
  const Index others = keys.ranks() - 1, own = keys.tokens(rank), theirs = keys.seq() - own;
  Traffic due;
  due.add(others * own * token_bytes, theirs * token_bytes, both ? 2 : 1);
  if (both) due.add(theirs * gradient_bytes, others * own * gradient_bytes);
  return due;
}

}  // namespace

template <class T>
testing::AssertionResult sent_what_it_should(const RankRun<T>& run, const Case& what, const Team& team,
                                             int rank, const NumberBytes& bytes) {
  const RankGrid grid = team.grid(rank);
  const Placements tokens = team.tokens(what);
  const Interval own_heads = shared_heads(what.kv_heads, team.ulysses).front();
  const Index kv_heads = own_heads.end - own_heads.begin;  // of this rank; all have as many
  // K and V of a token.
  const Index numbers = what.batch * kv_heads * (what.dim + what.kv().value_dim),
              element = static_cast<Index>(sizeof(T));
  const bool both = run.has_backward;
  const Ring ring = grid.ring.ring(rank);
  const auto verdict = [&]() -> testing::AssertionResult {
    if (team.all_gathers_kv) {
      const auto pieces = [&](bool backward) {
        return gathered(tokens.keys, ring.rank, numbers * bytes.wire, numbers * element, backward);
      };
      if (auto forward = is_due("all-gather, forward", run.forward_pieces, pieces(false), false); !forward)
        return forward;
      return both ? is_due("all-gather", run.pieces, pieces(true), false) : testing::AssertionSuccess();
    }
    if (what.bias_batch == 0) {
      const auto pieces = [&](bool backward) {
        return heads_of(what, grid, tokens, bytes.input, element, backward);
      };
      if (auto forward = is_due("all-to-all, forward", run.forward_pieces, pieces(false), false); !forward)
        return forward;
      if (both)
        if (auto all = is_due("all-to-all", run.pieces, pieces(true), false); !all) return all;
    }
    const Traffic kv = ring_kv(what, tokens, ring, numbers * bytes.wire);
    if (auto forward = is_due("K,V, forward", run.forward_kv, kv); !forward || !both) return forward;
    if (auto backward = is_due("K,V, backward", run.kv, kv); !backward) return backward;
    return is_due("dK,dV", run.gradient, ring_gradients(tokens.keys, numbers * element));
  }();
  if (verdict) return verdict;
  return testing::AssertionFailure() << to_string(team) << ", rank " << rank << ": " << verdict.message();
}

#define RING_ATTENTION_INSTANTIATE(T)                                                                     \
  template Whole<T> zeros(const Case&, bool);                                                             \
  template void put_rank(Whole<T>&, const Whole<T>&, const TokenRanges&, const TokenRanges&);             \
  template testing::AssertionResult same_bits(const Whole<T>&, const Whole<T>&);                          \
  template testing::AssertionResult agrees(const Whole<T>&, const Problem<T>&);                           \
  template testing::AssertionResult agrees(const Whole<T>&, const GradientProblem<T>&);                   \
  template void expect_same_run(const RankRun<T>&, const RankRun<T>&);                                    \
  template testing::AssertionResult sent_what_it_should(const RankRun<T>&, const Case&, const Team&, int, \
                                                        const NumberBytes&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
#undef RING_ATTENTION_INSTANTIATE

}  // namespace ring_attention::test
