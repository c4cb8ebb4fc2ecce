// Ulysses, its hybrid with a ring and the all-gather over MPI: bit for bit those of the threads, which agree with the
// reference.

#include <gtest/gtest.h>

#include "ring_attention/parallel/mpi_links.hpp"
#include "support/decode_runs.hpp"
#include "support/parallel_runs.hpp"

namespace ring_attention::test {
namespace {

class MpiParallel : public testing::Test {
 protected:
  Communicator comm{MPI_COMM_WORLD};
  std::size_t own = static_cast<std::size_t>(comm.rank());

  template <class T>
  void expect_same(const ParallelResult<T>& got, const ParallelResult<T>& threads) {
    EXPECT_TRUE(same_bits(got.attended, threads.attended));
    EXPECT_TRUE(same_bits(got.gradients, threads.gradients));
    for (const auto member : {&ParallelResult<T>::forward_pieces, &ParallelResult<T>::pieces,
                              &ParallelResult<T>::kv, &ParallelResult<T>::gradient}) {
      EXPECT_EQ((got.*member).messages_sent, (threads.*member).messages_sent);
      EXPECT_EQ((got.*member).bytes_sent, (threads.*member).bytes_sent);
      EXPECT_EQ((got.*member).bytes_received, (threads.*member).bytes_received);
    }
  }

  template <class T>
  void expect_a_right_hybrid(const GradientProblem<T>& problem, int ulysses, TransportKind kind) {
    SCOPED_TRACE("U = " + std::to_string(ulysses) + ": " + to_string(problem.what()));
    const RankGrid grid(comm.rank(), comm.size(), ulysses);
    MpiLinks links(comm, grid.ulysses, grid.ring, kind);
    expect_same(run_rank_parallel<T>(problem, grid, false, links),
                run_loopback_hybrid(problem, ulysses, grid.ring.size)[own]);
  }
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
      expect_a_right_hybrid(make_gradient_problem<float>(what), ulysses, TransportKind::overlapped);
      what.kind = PlacementKind::striped;
      what.queries = what.keys = 3;
      expect_a_right_hybrid(make_gradient_problem<double>(what), ulysses, TransportKind::odd_even);
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
    const RankGrid grid(comm.rank(), comm.size(), 1);
    MpiLinks links(comm, grid.ulysses, grid.ring);
    expect_same(run_rank_parallel(problem, grid, true, links),
                run_loopback_all_gather(problem, comm.size())[own]);
  }
}

TEST_F(MpiParallel, Decoding) {
  for (const PlacementKind kind : placement_kinds) {
    Case what = decode_case(12, 3);
    what.kind = kind;
    const auto problem = make_problem<float>(what);
    MpiAllToAll link(comm);
    EXPECT_TRUE(
        same_bits(run_rank_decode(link, problem, 5), run_loopback_decode(problem, 5, comm.size())[own]));
  }
}

}  // namespace
}  // namespace ring_attention::test
