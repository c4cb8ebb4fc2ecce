// lessons/00_attention/ring_attention.cpp gives what the library gives. Its length and its includes: ideas_test.py.

#include <gtest/gtest.h>
#include <mpi.h>

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>

#include "ring_attention/core/compare.hpp"
#include "ring_attention/ring_attention.hpp"

namespace one_file {  // the names of the file, which includes nothing that is not above
#define main run
#include "00_attention/ring_attention.cpp"  // NOLINT(bugprone-suspicious-include): it is one whole program
#undef main
}  // namespace one_file

namespace ring_attention::test {
namespace {

TEST(OneFile, AgreesWithTheLibrary) {
  one_file::Ring ring{};
  MPI_Comm_rank(MPI_COMM_WORLD, &ring.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ring.size);
  const auto q = ring.own(one_file::random_matrix(1)), k = ring.own(one_file::random_matrix(2)),
             v = ring.own(one_file::random_matrix(3));
  const Shape shard{1, 1, ring.count(ring.rank), one_file::dim};
  const auto view = [&](const one_file::Matrix& rows) { return View<const double>(rows.data(), shard); };
  const one_file::Matrix out = one_file::ring_attention(q, k, v, ring);

  const Placement placement(PlacementKind::contiguous, one_file::tokens, ring.size);
  const Scoring scoring{1 / std::sqrt(one_file::dim), Mask::causal()};
  const auto library = forward({mpi(MPI_COMM_WORLD)}, view(q), view(k), view(v), placement, scoring);
  const Comparison comparison =
      compare(view(out), View<const double>(library.out.view()), {.absolute = 1e-14});
  EXPECT_TRUE(comparison.ok) << describe(comparison);
}

}  // namespace
}  // namespace ring_attention::test
