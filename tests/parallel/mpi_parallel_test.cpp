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

// Ranks that share cores mostly wait for each other: from five ranks on one number of KV heads, with replicas.
TEST_F(MpiParallel, HybridsOfEverySize) {
  for (int ulysses = 1; ulysses <= comm.size(); ++ulysses)
    for (const Index kv_heads : {1, 2, 6}) {
      if (comm.size() % ulysses != 0 || !can_share_heads(12, kv_heads, ulysses)) continue;
      if (comm.size() > 4 && kv_heads != 2) continue;
      Case what{.kv_heads = kv_heads,
                .group = 12 / kv_heads,
                .queries = 29,
                .keys = 29,
                .scoring = {0.5, Mask::causal(), alibi_slopes(12)},
                .kind = PlacementKind::zigzag};
      const Team team{ulysses, comm.size() / ulysses};
      expect_the_run_of_threads<float>(comm, make_gradient_problem<float>(what), team);
      what.kind = PlacementKind::striped;
      what.queries = what.keys = 3;
      expect_the_run_of_threads<double>(comm, make_gradient_problem<double>(what), team,
                                        TransportKind::odd_even);
    }
}

// 512 KiB and more a piece: far more than MPI buffers.
TEST_F(MpiParallel, PiecesTooLargeToBuffer) {
  const Case what{.kv_heads = comm.size(), .queries = 8, .keys = 1024, .dim = Index{64} * comm.size()};
  Tensor<float> x(what.kv());
  fill_random(x.view(), {});
  MpiAllToAll link(comm);
  const HeadShare share(comm.size(), comm.size(), comm.size());
  const std::vector<Index> tokens(share.kv.size(), 1024);
  const Tensor<float> heads = to_heads(link, std::as_const(x).view(), share.kv, tokens);
  EXPECT_TRUE(bitwise_equal(to_sequence(link, heads.view(), share.kv, tokens), x));
}

TEST_F(MpiParallel, AllGather) {
  for (const PlacementKind kind : {PlacementKind::contiguous, PlacementKind::zigzag}) {
    const auto problem = make_gradient_problem<float>(
        {.group = 2, .queries = 13, .keys = 29, .scoring = {0.5, Mask::causal(16)}, .kind = kind});
    expect_the_run_of_threads<float>(comm, problem, {.rings = comm.size(), .gathers = true});
  }
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
