// A team of ranks that share an attention, their results, and the checks of these.
#pragma once

#include <vector>

#include "ring_attention/parallel/all_gather/all_gather.hpp"
#include "ring_attention/parallel/ulysses/ulysses.hpp"
#include "ring_attention/ring/transport.hpp"
#include "support/gradients.hpp"

namespace ring_attention::test {

/// How many ranks share an attention, and how: Ulysses, a ring, both, or an all-gather over the ranks of a ring.
struct Team {
  int ulysses = 1, rings = 1;
  bool all_gathers_kv = false;
  Index tile = 0;  ///< ranks hold whole tiles of this many tokens, as the same bits require; 0: tokens

  [[nodiscard]] int ranks() const { return ulysses * rings; }
  [[nodiscard]] Division division() const { return all_gathers_kv ? all_gather() : hybrid(ulysses); }
  [[nodiscard]] RankGrid grid(int rank) const { return {rank, ranks(), ulysses}; }
  /// The tokens of each ring rank.
  [[nodiscard]] Placements tokens(const Case& what) const;
};
std::string to_string(const Team& team);

/// Forward and backward: of the tokens of a rank, or of the whole problem.
template <class T>
struct Whole {
  AttentionResult<T> attended;
  Gradients<T> gradients;  ///< empty after a forward alone
};
template <class T>
struct RankRun : Whole<T> {
  TransportStatistics forward_kv, kv, gradient;  ///< of the ring: in the forward; in the backward
  TransportStatistics forward_pieces, pieces;    ///< of the all-to-all: in the forward; in both
  Index forward_peak = 0, peak = 0;  ///< bytes of tensors besides the rank's arrays that a pass begins with
  bool has_backward = false;
};
template <class T>
struct TeamRun : Whole<T> {
  std::vector<RankRun<T>> ranks;

  [[nodiscard]] const RankRun<T>& operator[](int rank) const { return ranks[static_cast<std::size_t>(rank)]; }
};

/// Arrays of a problem's shapes. \param backward  with those of the gradients
template <class T>
Whole<T> zeros(const Case& what, bool backward = true);

/// Puts the results of a rank at its tokens. Sinks have sums over ranks.
template <class T>
void put_rank(Whole<T>& all, const Whole<T>& part, const TokenRanges& queries, const TokenRanges& keys);

/// The same bits in all that a head has by itself: everything but the gradients of a bias that heads share, and of sinks,
/// which are sums over ranks in another order.
template <class T>
testing::AssertionResult same_bits(const Whole<T>& a, const Whole<T>& b);

/// Forward, or both ways, against the dense reference.
template <class T>
testing::AssertionResult agrees(const Whole<T>& got, const Problem<T>& problem);
template <class T>
testing::AssertionResult agrees(const Whole<T>& got, const GradientProblem<T>& problem);

/// The same bits in everything, and the same messages.
template <class T>
void expect_same_run(const RankRun<T>& got, const RankRun<T>& want);

/// Bytes of a number of q, k, v and dO; and of K,V in the messages of a ring or an all-gather.
struct NumberBytes {
  Index input, wire;
};
template <class T>
constexpr NumberBytes bytes_of{sizeof(T), sizeof(T)};

/// Whether rank `rank` sent and received what it must, by formula: in a ring the K,V that go on at each of N - 1 hops, if
/// the mask needs them, and dK,dV once for every rank that has tokens; in an all-gather its shard to every rank, and in the
/// backward what it adds to the others' gradients; between the ranks that share heads their slices of all arrays. (The
/// bytes of a bias are not counted: then messages of heads are not looked at.)
template <class T>
testing::AssertionResult sent_what_it_should(const RankRun<T>& run, const Case& what, const Team& team,
                                             int rank, const NumberBytes& bytes = bytes_of<T>);
/// Whether all ranks did.
template <class T>
testing::AssertionResult sent_what_it_should(const TeamRun<T>& run, const Case& what, const Team& team,
                                             const NumberBytes& bytes = bytes_of<T>) {
  for (int rank = 0; rank < team.ranks(); ++rank)
    if (const auto verdict = sent_what_it_should(run[rank], what, team, rank, bytes); !verdict)
      return verdict;
  return testing::AssertionSuccess();
}

}  // namespace ring_attention::test
