#include "ring_attention/ring_attention.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

namespace ra = ring_attention;

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  const ra::Placement placement(ra::PlacementKind::zigzag, 1000, ranks);  // 1000 tokens in all
  const ra::Shape shard{1, 8, placement.tokens(rank), 64};                // [b, h, tokens, d]
  std::vector<float> rows(static_cast<std::size_t>(shard.size()), 1.0F);  // yours instead
  const ra::View<const float> q(rows.data(), shard), k = q, v = q, grad_out = q;
  const ra::Attention ring{ra::mpi(MPI_COMM_WORLD)};  // ra::cores(4) too: 4 threads
  const ra::Scoring scoring{1 / std::sqrt(64.0), ra::Mask::causal()};

  const auto result = ra::forward(ring, q, k, v, placement, scoring);  // out, lse
  const auto grads = ra::backward(ring, q, k, v, result, grad_out, placement, scoring);
  std::printf("rank %d: out %g, dv %g\n", rank, result.out.data()[0], grads.v.data()[0]);
  MPI_Finalize();
}
