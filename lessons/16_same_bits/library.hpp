// Lesson 16, beside the idea: the library's ring, forward and backward, its ranks as threads of one process.
#pragma once

#include "common/problem.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/parallel/context_parallel.hpp"
#include "ring_attention/parallel/cpu_devices.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::lesson_16 {

struct Arrays {
  std::array<Tensor<float>, 5> all;        // out, lse, dq, dk, dv
  Index kv_bytes = 0, gradient_bytes = 0;  // sent by rank 0 in the ring of the backward
};
inline constexpr std::array array_names{"out", "lse", "dq", "dk", "dv"};

inline void put_rows(const Tensor<float>& rows, Tensor<float>& whole, const TokenRanges& ranges) {
  const std::vector<Index> to = positions(ranges);
  for (Index h = 0; h < whole.shape().heads; ++h)
    for (std::size_t i = 0; i < to.size(); ++i)
      std::ranges::copy(rows.view().row(0, h, static_cast<Index>(i)), whole.view().row(0, h, to[i]).begin());
}

/// \param same_bits  the tile, or 0: the usual sums
inline Arrays run_library(const RandomProblem& problem, int ranks, PlacementKind kind, Index same_bits) {
  const Placement placement = same_bits > 0 ? Placement(kind, Tiling(same_bits).cuts(problem.q.seq), ranks)
                                            : Placement(kind, problem.q.seq, ranks);
  const auto device = make_cpu_device<float>({1, best_isa(), same_bits});
  Arrays arrays{{Tensor<float>(problem.q), Tensor<float>(problem.q.per_row()), Tensor<float>(problem.q),
                 Tensor<float>(problem.kv), Tensor<float>(problem.kv)}};
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    const RankGrid grid(rank, ranks, 1);
    PeerLinks links(world.peers(rank), grid.ulysses, grid.ring);
    ContextParallel<float> attention(*device, links,
                                     {grid, ring(), placement, problem.q, problem.kv, problem.scoring});
    const TokenRanges ranges = placement.ranges(rank);
    const Tensor<float> q = problem.queries<float>(ranges), k = problem.make<float>(problem.kv, 1, ranges),
                        v = problem.make<float>(problem.kv, 2, ranges),
                        grad_out = problem.make<float>(problem.q, 3, ranges);
    const AttentionResult<float> forward = attention.forward(q, k, v);
    const Index before = attention.hops(Channel::kv).bytes_sent;
    const Gradients<float> gradients = attention.backward({q, forward.out, forward.lse, grad_out}, k, v);
    if (rank == 0) {
      arrays.kv_bytes = attention.hops(Channel::kv).bytes_sent - before;
      arrays.gradient_bytes = attention.hops(Channel::gradients).bytes_sent;
    }
    const std::array rows{&forward.out, &forward.lse, &gradients.q, &gradients.k, &gradients.v};
    for (std::size_t i = 0; i < rows.size(); ++i) put_rows(*rows[i], arrays.all[i], ranges);
  });
  return arrays;
}

/// Elements whose bits differ.
inline Index differing(std::span<const float> a, std::span<const float> b) {
  Index elements = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    elements += std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]) ? 1 : 0;
  return elements;
}

/// Of the bits of an array: FNV-1a.
inline std::uint32_t checksum(const Tensor<float>& array) {
  std::uint32_t sum = 2166136261U;
  for (const std::byte byte : std::as_bytes(array.view().elements()))
    sum = (sum ^ std::to_integer<std::uint32_t>(byte)) * 16777619U;
  return sum;
}

/// A line for each number of ranks. Returns the elements of out, lse, dq, dk and dv that differ from one rank's.
inline std::vector<std::vector<Index>> show_ranks(Lesson& lesson, const RandomProblem& problem,
                                                  Index same_bits) {
  Table table({"ranks", "checksum of out", "elements of out unlike 1 rank's", "lse", "dq", "dk", "dv"});
  std::vector<std::vector<Index>> figures;
  const Arrays one = run_library(problem, 1, PlacementKind::contiguous, same_bits);
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const Arrays got = run_library(problem, ranks, PlacementKind::contiguous, same_bits);
    auto& counts = figures.emplace_back();
    for (std::size_t i = 0; i < got.all.size(); ++i)
      counts.push_back(differing(got.all[i].view().elements(), one.all[i].view().elements()));
    std::vector<std::string> cells{std::to_string(ranks), format("%08x", checksum(got.all[0])),
                                   std::to_string(counts[0]) + " of " + std::to_string(got.all[0].size())};
    for (std::size_t i = 1; i < counts.size(); ++i) cells.push_back(std::to_string(counts[i]));
    table.row(cells);
  }
  lesson.print(same_bits == 0 ? "usual" : "exact", table);
  return figures;
}

}  // namespace ring_attention::lesson_16
