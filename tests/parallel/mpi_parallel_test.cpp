// Ulysses, its hybrid with a ring and the all-gather over MPI: bit for bit those of the threads, which agree with the
// reference.

#include <gtest/gtest.h>

#include "support/decode_runs.hpp"
#include "support/mpi_run.hpp"

namespace ring_attention::test {
namespace {

class MpiParallel : public testing::Test {
 protected:
  Communicator comm{MPI_COMM_WORLD};
};

TEST_F(MpiParallel, ASubCommunicatorHoldsALineOfTheGridInItsOrder) {
  for (int ulysses = 1; ulysses <= comm.size(); ++ulysses) {
    if (comm.size() % ulysses != 0) continue;
    const RankGrid grid(comm.rank(), comm.size(), ulysses);
    for (const Axis& axis : {grid.ulysses, grid.ring}) {
      const Communicator group(comm, axis.group(comm.rank()));
      EXPECT_EQ(group.rank(), axis.index(comm.rank()));
      EXPECT_EQ(group.size(), axis.size);
    }
  }
}

// 512 KiB and more a piece: far more than MPI buffers.
TEST_F(MpiParallel, PiecesTooLargeToBuffer) {
  const Case what{.kv_heads = comm.size(), .queries = 8, .keys = 1024, .dim = Index{64} * comm.size()};
  Tensor<float> x(what.kv());
  fill_random(x.view(), {});
  MpiAllToAll link(comm);
  const std::vector<Interval> of_ranks = shared_heads(comm.size(), comm.size());
  const std::vector<Index> tokens(of_ranks.size(), 1024);
  const Tensor<float> heads = to_heads(link, std::as_const(x).view(), of_ranks, tokens);
  EXPECT_TRUE(bitwise_equal(to_sequence(link, heads.view(), of_ranks, tokens), x));
}

TEST_F(MpiParallel, Decoding) {
  for (const PlacementKind kind : placement_kinds) {
    Case what = decode_case(12, 3);
    what.kind = kind;
    const auto problem = make_problem<float>(what);
    MpiAllToAll link(comm);
    EXPECT_TRUE(
        same_bits(run_rank_decode(link, problem, 5),
                  run_loopback_decode(problem, 5, comm.size())[static_cast<std::size_t>(comm.rank())]));
  }
}

}  // namespace
}  // namespace ring_attention::test
