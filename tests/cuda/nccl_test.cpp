// NcclAllToAll over the emulated NCCL: the bytes of MpiAllToAll, and whole jobs with the bits of the threads on one GPU.

#include <gtest/gtest.h>

#include "cuda/parallel_runs.hpp"
#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"
#include "ring_attention/parallel/collectives/nccl_all_to_all.hpp"
#include "ring_attention/parallel/cuda_links.hpp"

namespace ring_attention::test {
namespace {

class Nccl : public testing::Test {
 protected:
  /// This rank's part of a job over NCCL has the bits of the thread.
  void expect_the_rank_of_threads(const GradientProblem<float>& problem, const Team& team) const {
    SCOPED_TRACE(to_string(team));
    const RankGrid grid = team.grid(comm.rank());
    CudaLinks links(comm, grid.ulysses, grid.ring, stream.handle(), {});
    expect_same_run(run_rank_on_gpu<float>(problem, team, links, comm.rank(), stream.handle()),
                    run_on_gpu<float>(problem, team)[comm.rank()]);
  }

  Communicator comm{MPI_COMM_WORLD};
  std::size_t own = static_cast<std::size_t>(comm.rank());
  cuda::Stream stream;
};

TEST_F(Nccl, AnAllToAllMovesTheBytesOfMpi) {
  NcclAllToAll nccl(std::make_shared<NcclWorld>(comm), stream.handle());
  MpiAllToAll mpi(comm);
  EXPECT_EQ(nccl.rank(), mpi.rank());
  EXPECT_EQ(nccl.size(), mpi.size());
  const cuda::DeviceMemory memory(stream.handle());
  const std::vector<Interval> query_heads = shared_heads(Index{2} * comm.size(), comm.size()),  // two each
      kv_heads = shared_heads(1, comm.size());  // a replica of one each
  std::vector<Index> tokens;
  for (int rank = 0; rank < comm.size(); ++rank) tokens.push_back(rank);  // rank 0 holds none
  Tensor<float> q({2, Index{2} * comm.size(), comm.rank(), 3}), k({2, 1, comm.rank(), 3});
  fill_random(q.view(), {1, own});
  fill_random(k.view(), {2, own});
  const auto there = [&](const Tensor<float>& x) { return cuda::uploaded<float>(x, stream.handle()); };
  const auto here = [&](const auto& x) { return cuda::downloaded(x, stream.handle()); };

  const auto q_heads = to_heads<float>(nccl, there(q), query_heads, tokens, memory);
  const auto k_heads = to_heads<float>(nccl, there(k), kv_heads, tokens, memory);
  const Tensor<float> want_q = to_heads<float>(mpi, q, query_heads, tokens);
  const Tensor<float> want_k = to_heads<float>(mpi, k, kv_heads, tokens);
  EXPECT_TRUE(bitwise_equal(here(q_heads), want_q));
  EXPECT_TRUE(bitwise_equal(here(k_heads), want_k));
  EXPECT_TRUE(bitwise_equal(here(to_sequence<float>(nccl, q_heads, query_heads, tokens, memory)), q));
  EXPECT_TRUE(bitwise_equal(here(to_sequence<float>(nccl, k_heads, kv_heads, tokens, memory)),
                            to_sequence<float>(mpi, want_k, kv_heads, tokens)));
  (void)to_sequence<float>(mpi, want_q, query_heads, tokens);
  EXPECT_EQ(nccl.statistics().messages_sent, mpi.statistics().messages_sent);
  EXPECT_EQ(nccl.statistics().bytes_sent, mpi.statistics().bytes_sent);
  EXPECT_EQ(nccl.statistics().bytes_received, mpi.statistics().bytes_received);
}

TEST_F(Nccl, ItRefusesPiecesThatDoNotFit) {
  NcclAllToAll link(std::make_shared<NcclWorld>(comm), stream.handle());
  EXPECT_THROW(link.all_to_all({}), Error);
}

TEST_F(Nccl, HybridsOfEverySizeHaveTheBitsOfTheThreads) {
  for (int ulysses = 1; ulysses <= comm.size(); ++ulysses)
    for (const Index kv_heads : {2, 6}) {
      if (comm.size() % ulysses != 0 || !can_share_heads(12, kv_heads, ulysses)) continue;
      const auto problem = problem_in<float>({.kv_heads = kv_heads,
                                              .group = 12 / kv_heads,
                                              .queries = 13,
                                              .keys = 13,
                                              .dim = 8,
                                              .scoring = {0.5, Mask::causal(), alibi_slopes(12)},
                                              .kind = PlacementKind::zigzag},
                                             stream.handle());
      expect_the_rank_of_threads(problem, {ulysses, comm.size() / ulysses});
    }
}

TEST_F(Nccl, AllGatherHasTheBitsOfTheThreads) {
  const auto problem = problem_in<float>({.group = 2,
                                          .queries = 13,
                                          .keys = 29,
                                          .dim = 8,
                                          .scoring = {0.5, Mask::causal(16)},
                                          .kind = PlacementKind::zigzag},
                                         stream.handle());
  expect_the_rank_of_threads(problem, {.rings = comm.size(), .all_gathers_kv = true});
}

}  // namespace
}  // namespace ring_attention::test
