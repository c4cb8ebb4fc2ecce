// Lesson 10, beside the idea: one rank's part of a problem on a grid of U x R ranks; the mistakes; the results by a
// ring of threads and by the dense reference; the bytes.
#pragma once

#include <ranges>

#include "common/problem.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/parallel/ulysses/heads.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::lesson_10 {

inline const std::vector<std::pair<std::string, std::string>> mutants{
    {"interleaved-heads", "query heads are dealt round-robin, KV heads in blocks: the groups break"},
    {"first-replica", "dK,dV of a KV head that several ranks have are those of the first of them"},
    {"world-placement", "zigzag over all ranks, not over the ranks of a ring"},
    {"swapped-axes", "the tokens are placed with U and R exchanged"},
    {"local-heads", "ALiBi slopes by the number of a head on its rank, not in the layer"}};

/// Some heads and some tokens of an array [1, heads, tokens, dim].
[[nodiscard]] inline Tensor<float> block_of(View<const float> x, const Interval& heads,
                                            const Interval& tokens) {
  Tensor<float> block({1, heads.end - heads.begin, tokens.end - tokens.begin, x.shape().dim});
  for (Index head = 0; head < block.shape().heads; ++head)
    for (Index token = 0; token < block.shape().seq; ++token)
      std::ranges::copy(x.row(0, heads.begin + head, tokens.begin + token),
                        block.view().row(0, head, token).begin());
  return block;
}

/// Forward and backward.
struct Result {
  AttentionResult<float> attended;
  Gradients<float> gradients;
};

[[nodiscard]] inline bool same_bits(const Gradients<float>& a, const Gradients<float>& b) {
  return bitwise_equal(a.q, b.q) && bitwise_equal(a.k, b.k) && bitwise_equal(a.v, b.v);
}

/// One rank's part. Zigzag placement over the rings.
class RankShare {
 public:
  /// \param ulysses  U; it divides the number of ranks
  RankShare(const Communicator& comm, const RandomProblem& problem, int ulysses, const Lesson& lesson)
      : comm_(comm),
        problem_(problem),
        lesson_(lesson),
        held_(comm.rank(), comm.size(), ulysses),
        grid_(comm.rank(), comm.size(), lesson.mutant("swapped-axes") ? comm.size() / ulysses : ulysses),
        heads_(comm, grid_.ulysses.group(comm.rank())),
        ring_(comm, grid_.ring.group(comm.rank())),
        query_heads_(shared_heads(problem.q.heads, grid_.ulysses.size)),
        kv_heads_(shared_heads(problem.kv.heads, grid_.ulysses.size)),
        placement_(PlacementKind::zigzag, problem.q.seq, grid_.ring.size),
        slice_(slice()) {}

  /// The ranks that share this rank's shard, and those that have its heads.
  [[nodiscard]] const Communicator& heads() const { return heads_; }
  [[nodiscard]] const Communicator& ring() const { return ring_; }
  [[nodiscard]] const RankGrid& grid() const { return grid_; }
  [[nodiscard]] const Placement& placement() const { return placement_; }
  /// Where the tokens that this rank holds stand.
  [[nodiscard]] const TokenRanges& tokens() const { return slice_; }
  /// The heads that this rank computes, by a ring of the library over ring(): no rank shares them.
  [[nodiscard]] SharedAttention own_heads() const {
    const Interval query = own_of(query_heads_);
    return ring_of(ring_.rank(), query, own_of(kv_heads_),
                   lesson_.mutant("local-heads") ? Interval{0, size(query)} : query);
  }
  /// For the query heads, and for the KV heads.
  [[nodiscard]] lesson::UlyssesGroup queries() const { return {query_heads_, slices(), own_rank()}; }
  [[nodiscard]] lesson::UlyssesGroup keys() const { return {kv_heads_, slices(), own_rank()}; }
  /// Do several ranks have one KV head?
  [[nodiscard]] bool has_replicas() const { return grid_.ulysses.size > problem_.kv.heads; }

  /// This rank's rows of q, k, v and dO.
  [[nodiscard]] Tensor<float> q() const { return dealt(rows(problem_.q, 0)); }
  [[nodiscard]] Tensor<float> k() const { return rows(problem_.kv, 1); }
  [[nodiscard]] Tensor<float> v() const { return rows(problem_.kv, 2); }
  [[nodiscard]] Tensor<float> grad_out() const { return dealt(rows(problem_.q, 3)); }
  /// Rows of out, lse or dQ in the order of the layer.
  [[nodiscard]] Tensor<float> in_order(const Tensor<float>& x) const { return dealt(x, true); }
  /// The mutant: is another rank the first one that has this rank's KV head?
  [[nodiscard]] bool returns_zeros() const {
    return lesson_.mutant("first-replica") && own_rank() > 0 &&
           kv_heads_[own_rank()].begin < kv_heads_[own_rank() - 1].end;
  }

  /// What is right, bit for bit: a ring of R threads, which compute all heads of their shard.
  [[nodiscard]] Result by_ring() const {
    return ring_of_threads({0, problem_.q.heads}, {0, problem_.kv.heads});
  }
  /// The same, but each of U ranks' heads by themselves: dK,dV of replicas are added in the order of the ranks.
  [[nodiscard]] Gradients<float> by_heads_of_ranks() const {
    Gradients<float> sum{by_ring().gradients.q, Tensor<float>(k().shape()), Tensor<float>(k().shape())};
    const auto add = [](Tensor<float>& all, const Tensor<float>& term, Index first) {
      const std::span<float> at(all.view().head(0, first), static_cast<std::size_t>(term.size()));
      host_memory().add(at, term.view().elements());
    };
    for (std::size_t u = 0; u < kv_heads_.size(); ++u) {
      const Result own = ring_of_threads(query_heads_[u], kv_heads_[u]);
      add(sum.k, own.gradients.k, kv_heads_[u].begin);
      add(sum.v, own.gradients.v, kv_heads_[u].begin);
    }
    return sum;
  }

  /// The worst of out, lse, dQ, dK and dV against the dense reference in double. Collective.
  [[nodiscard]] Comparison against_reference(const Result& got) const {
    const auto k = converted<double>(problem_.keys<float>()), v = converted<double>(problem_.values<float>());
    const Reference forward = problem_.reference<float>(slice_);
    ReferenceGradients want =
        reference_backward(converted<double>(rows(problem_.q, 0)), k, v,
                           converted<double>(rows(problem_.q, 3)), problem_.scoring, slice_);
    sum_over_ranks(comm_, want.k.view().elements());
    sum_over_ranks(comm_, want.v.view().elements());
    std::array magnitudes{want.magnitude_k, want.magnitude_v};
    sum_over_ranks(comm_, std::span<double>(magnitudes));
    const auto gradient = [&](const Tensor<float>& array, const Tensor<double>& wanted, double magnitude) {
      const bool zero = std::ranges::all_of(wanted.view().elements(), [](double x) { return x == 0; });
      const Index terms = problem_.q.seq * problem_.q.heads / problem_.kv.heads;
      return compare(array, wanted, gradient_tolerance<float>(terms, want.max_abs_score, magnitude),
                     {.expect_zero = zero});
    };
    const Tolerance tolerance = problem_.tolerance<float>(forward);
    const std::array all{compare(got.attended.out, forward.out, tolerance),
                         compare(got.attended.lse, forward.lse, tolerance),
                         gradient(got.gradients.q, want.q, want.magnitude_q),
                         gradient(got.gradients.k, rows_at(want.k, slice_), magnitudes[0]),
                         gradient(got.gradients.v, rows_at(want.v, slice_), magnitudes[1])};
    return *std::ranges::max_element(all, [](const Comparison& a, const Comparison& b) {
      return a.ok != b.ok ? a.ok : a.max_error < b.max_error;
    });
  }

  /// What it must send by all-to-all: q, k, v there, out and lse back; dO there, dQ, dK, dV back.
  [[nodiscard]] Index forward_bytes() const {
    const Index dim = problem_.q.dim;
    return bytes_to_heads(query_heads_, dim) + 2 * bytes_to_heads(kv_heads_, dim) +
           bytes_to_sequence(query_heads_, dim) + bytes_to_sequence(query_heads_, 1);
  }
  [[nodiscard]] Index backward_bytes() const {
    const Index dim = problem_.q.dim;
    return bytes_to_heads(query_heads_, dim) + bytes_to_sequence(query_heads_, dim) +
           2 * bytes_to_sequence(kv_heads_, dim);
  }
  /// And by the ring of the forward.
  [[nodiscard]] Index ring_bytes() const {
    const Ring ring{ring_.rank(), ring_.size()};
    const Index tokens = ring.size == 1 ? 0 : problem_.q.seq - placement_.tokens(ring.next());
    return 2 * size(own_of(kv_heads_)) * tokens * problem_.kv.dim * element;
  }

 private:
  static constexpr Index element = sizeof(float);
  static Index size(const Interval& interval) { return interval.end - interval.begin; }
  [[nodiscard]] std::size_t own_rank() const { return static_cast<std::size_t>(heads_.rank()); }
  [[nodiscard]] Interval own_of(const std::vector<Interval>& of_ranks) const { return of_ranks[own_rank()]; }
  /// The slices of heads(): local indices of the shard.
  [[nodiscard]] std::vector<Interval> slices() const {
    std::vector<Interval> slices;
    Index begin = 0;
    for (const Index tokens : grid_.tokens(placement_)) {
      slices.push_back({begin, begin + tokens});
      begin += tokens;
    }
    return slices;
  }
  /// The tokens that this rank holds, of the heads of the other ranks.
  [[nodiscard]] Index bytes_to_heads(const std::vector<Interval>& heads, Index dim) const {
    Index others = -size(own_of(heads));
    for (const Interval& rank : heads) others += size(rank);
    return size(own_of(slices())) * others * dim * element;
  }
  /// The heads that it computes, of the tokens of the other ranks.
  [[nodiscard]] Index bytes_to_sequence(const std::vector<Interval>& heads, Index dim) const {
    const Index others = slices().back().end - size(own_of(slices()));
    return size(own_of(heads)) * others * dim * element;
  }
  /// With a mutant other tokens, and as many: its messages have the right lengths.
  [[nodiscard]] TokenRanges slice() const {
    TokenRanges right = grid_.slice(placement_);
    const auto zigzag = [&](int ranks) { return Placement(PlacementKind::zigzag, problem_.q.seq, ranks); };
    TokenRanges other;
    if (lesson_.mutant("world-placement")) other = zigzag(comm_.size()).ranges(comm_.rank());
    if (lesson_.mutant("swapped-axes")) other = held_.slice(zigzag(held_.ring.size));
    if (other.empty()) return right;
    std::vector<Index> tokens = positions(right);
    std::ranges::copy(positions(other) | std::views::take(tokens.size()), tokens.begin());
    other.clear();
    for (const Index token : tokens) other.push_back({token, 1, 1});
    return other;
  }
  /// This rank's rows of q, k, v or dO: the streams 0, 1, 2, 3.
  [[nodiscard]] Tensor<float> rows(const Shape& whole, std::uint64_t stream) const {
    return problem_.make<float>(whole, stream, slice_);
  }
  /// With a mutant the query heads in its order, or back.
  [[nodiscard]] Tensor<float> dealt(const Tensor<float>& x, bool back = false) const {
    Tensor<float> y = x.clone();
    const Index ranks = grid_.ulysses.size, own = x.shape().heads / ranks;
    const std::size_t numbers = static_cast<std::size_t>(x.shape().seq * x.shape().dim);
    for (Index head = 0; head < x.shape().heads && lesson_.mutant("interleaved-heads"); ++head) {
      const Index other = head / own + head % own * ranks;
      std::copy_n(x.view().head(0, back ? head : other), numbers, y.view().head(0, back ? other : head));
    }
    return y;
  }
  /// Rank `rank` of a ring over the shards, for some heads. K,V make every hop.
  /// \param scored  the heads whose scoring these get
  [[nodiscard]] SharedAttention ring_of(int rank, const Interval& query, const Interval& kv,
                                        const Interval& scored) const {
    SharedAttention ring{RankGrid(rank, ring_.size(), 1),
                         ring_attention::ring(),
                         placement_,
                         problem_.q,
                         problem_.kv,
                         problem_.scoring.of_heads(scored),
                         true};
    ring.q.heads = size(query);
    ring.kv.heads = size(kv);
    return ring;
  }
  [[nodiscard]] Result ring_of_threads(const Interval& own_q, const Interval& own_kv) const {
    Result outcome;
    LoopbackWorld world(grid_.ring.size);
    world.run([&](int rank) {
      const TokenRanges shard = placement_.ranges(rank);
      const Interval every{0, count(shard)}, mine = own_of(slices());
      const auto part = [&](const Shape& whole, std::uint64_t stream, const Interval& own) {
        return block_of(problem_.make<float>(whole, stream, shard), own, every);
      };
      const auto rows = [&](const Tensor<float>& x) { return block_of(x, {0, x.shape().heads}, mine); };
      const SharedAttention shared = ring_of(rank, own_q, own_kv, own_q);
      const CpuDevice<float> device;
      PeerLinks links(world.peers(rank), shared.grid.ulysses, shared.grid.ring);
      ContextParallel<float> ring(device, links, shared);
      const Tensor<float> q = part(problem_.q, 0, own_q), k = part(problem_.kv, 1, own_kv),
                          v = part(problem_.kv, 2, own_kv), grad_out = part(problem_.q, 3, own_q);
      const AttentionResult<float> attended = ring.forward(q, k, v);
      const Gradients<float> gradients = ring.backward({q, attended.out, attended.lse, grad_out}, k, v);
      if (rank == ring_.rank())
        outcome = {{rows(attended.out), rows(attended.lse)},
                   {rows(gradients.q), rows(gradients.k), rows(gradients.v)}};
    });
    return outcome;
  }

  const Communicator& comm_;
  RandomProblem problem_;
  const Lesson& lesson_;
  RankGrid held_, grid_;
  Communicator heads_, ring_;
  std::vector<Interval> query_heads_, kv_heads_;  // of each rank of heads()
  Placement placement_;
  TokenRanges slice_;
};

}  // namespace ring_attention::lesson_10
