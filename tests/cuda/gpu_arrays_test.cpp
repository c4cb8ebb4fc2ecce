// Attention of ring_attention.hpp with arrays of the (emulated) GPU, on ranks of MPI, also as Peers: the bits of
// `run --device cuda`, what a second call does without, the order of streams, and errors.

#include <gtest/gtest.h>

#include "cuda/gpu_user.hpp"
#include "cuda/parallel_runs.hpp"
#include "emulator/streams.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"
#include "ring_attention/parallel/cuda_links.hpp"
#include "ring_attention/parallel/term_gradients.hpp"
#include "ring_attention/parallel/ulysses/ulysses.hpp"
#include "ring_attention/partitions.hpp"
#include "ring_attention/peer_ranks.hpp"
#include "ring_attention/ring_attention.hpp"
#include "support/input_error.hpp"
#include "support/mpi_peers.hpp"

namespace {
/// Calls of MPI that the library makes; the emulated NCCL sends by MPI_Isend.
struct MpiCalls {
  int all_reduces = 0, all_reduced_bytes = 0, communicators = 0, others = 0;
} calls;
}  // namespace

extern "C" {
int MPI_Allreduce_c(const void* send, void* receive, MPI_Count count, MPI_Datatype type, MPI_Op op,
                    MPI_Comm comm) {
  int bytes = 0;
  PMPI_Type_size(type, &bytes);
  ++calls.all_reduces;
  calls.all_reduced_bytes += static_cast<int>(count) * bytes;
  return PMPI_Allreduce_c(send, receive, count, type, op, comm);
}
int MPI_Allreduce(const void* send, void* receive, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm) {
  ++calls.others;
  return PMPI_Allreduce(send, receive, count, type, op, comm);
}
int MPI_Bcast(void* buffer, int count, MPI_Datatype type, int root, MPI_Comm comm) {
  ++calls.others;
  return PMPI_Bcast(buffer, count, type, root, comm);
}
int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) {
  ++calls.communicators;
  return PMPI_Comm_dup(comm, copy);
}
int MPI_Comm_split(MPI_Comm comm, int colour, int key, MPI_Comm* part) {
  ++calls.communicators;
  return PMPI_Comm_split(comm, colour, key, part);
}
}

namespace ring_attention::test {
namespace {

class GpuArrays : public testing::Test {
 protected:
  /// Every partition that these ranks and heads can have.
  void for_each_partition(const Case& what, const auto& use) const {
    for (const auto& [partition, ulysses] :
         {std::pair{"ring", 1}, {"all-gather", 1}, {"ulysses", comm.size()}, {"hybrid", 2}}) {
      if (comm.size() % ulysses != 0 || !can_share_heads(what.q().heads, what.kv_heads, ulysses)) continue;
      GpuCall options;
      options.division = division_named(partition, ulysses);
      SCOPED_TRACE(partition);
      use(options, RankGrid(comm.rank(), comm.size(), ulysses));
    }
  }

  /// What this rank of a run of the program computes.
  template <class T>
  [[nodiscard]] RankRun<float> run(const GradientProblem<float>& problem, const RankGrid& grid,
                                   const GpuCall& options) const {
    const bool nccl = options.gpu.transport != GpuOptions::Transport::staged;
    CudaLinks links(comm, grid.ulysses, grid.ring, stream.handle(), {.nccl = nccl});
    const Team team{grid.ulysses.size, grid.ring.size, options.division.kv == std::string("all-gather")};
    return run_rank_on_gpu<T>(problem, team, links, comm.rank(), stream.handle());
  }

  template <class T>
  void expect_the_bits_of_a_run(const Case& what, GpuOptions::Transport transport) const {
    SCOPED_TRACE(to_string(what));
    const auto problem = problem_in<T>(what, stream.handle());
    MpiAllToAll ranks(comm);
    for_each_partition(what, [&](GpuCall options, const RankGrid& grid) {
      options.gpu.transport = transport;
      RankRun<float> want = run<T>(problem, grid, options);
      all_reduce(ranks, want.gradients.numbers());
      const GpuUser<T> user(problem, grid);
      GpuAttention attention(mpi(MPI_COMM_WORLD), options);
      const auto [attended, gradients] = user.attend(attention, stream.handle());
      EXPECT_TRUE(same_bits(attended, want.attended));
      EXPECT_TRUE(same_bits(gradients, want.gradients));
    });
  }

  Communicator comm{MPI_COMM_WORLD};
  cuda::Stream stream;
};

Case plain(Index kv_heads = 2) {
  return {.kv_heads = kv_heads,
          .group = 2,
          .queries = 29,
          .keys = 29,
          .dim = 8,
          .scoring = {0.5, Mask::causal()},
          .kind = PlacementKind::zigzag,
          .every_hop = false};
}

TEST_F(GpuArrays, HaveTheBitsOfARun) {
  expect_the_bits_of_a_run<float>(plain(), GpuOptions::Transport::nccl);
  expect_the_bits_of_a_run<Fp16>(plain(4), GpuOptions::Transport::staged);
}

TEST_F(GpuArrays, OfHeadsThatAllPartitionsShareHaveTheBitsOfARun) {
  expect_the_bits_of_a_run<Bf16>(plain(comm.size() == 3 ? 6 : 4), GpuOptions::Transport::nccl);
}

TEST_F(GpuArrays, WithEveryTermHaveTheBitsOfARun) {
  expect_the_bits_of_a_run<float>(with_everything({1, 1}, {0.3, Mask::causal(36), alibi_slopes(4)}, 0.2),
                                  GpuOptions::Transport::nccl);
}

TEST_F(GpuArrays, OfAHybridHaveTheBitsOfMpiOverPeers) {
  Case what = plain(4);
  what.queries = what.keys = 9;
  const auto problem = problem_in<float>(what, stream.handle());
  MpiPeers over;
  for_each_partition(what, [&](GpuCall options, const RankGrid& grid) {
    if (options.division.share_heads != 2) return;
    const GpuUser<float> user(problem, grid);
    options.gpu.transport = GpuOptions::Transport::staged;
    GpuAttention over_mpi(mpi(MPI_COMM_WORLD), options);
    const auto [attended, gradients] = user.attend(over_mpi, stream.handle());
    for (const auto transport : {GpuOptions::Transport::nccl, GpuOptions::Transport::staged}) {
      options.gpu.transport = transport;
      GpuAttention over_peers(peers(over), options);
      const auto [there, gradients_there] = user.attend(over_peers, stream.handle());
      EXPECT_TRUE(same_bits(there, attended));
      EXPECT_TRUE(same_bits(gradients_there, gradients));
    }
  });
}

TEST_F(GpuArrays, TheSecondCallEnqueuesOnly) {
  const auto problem = problem_in<Bf16>(plain(4), stream.handle());
  for_each_partition(plain(4), [&](const GpuCall& options, const RankGrid& grid) {
    GpuUser<Bf16> user(problem, grid);
    GpuAttention attention(mpi(MPI_COMM_WORLD), options);
    const auto [attended, gradients] = user.attend(attention, stream.handle());
    user.clear(stream.handle());
    stream.synchronize();

    const std::size_t from_driver = emulator::allocations_made();
    const Index host_arrays = allocation::count();
    calls = {};
    std::optional<emulator::FrozenGpu> frozen(std::in_place);
    user.enqueue(attention, stream.handle());
    frozen.reset();
    EXPECT_EQ(emulator::allocations_made(), from_driver);
    EXPECT_EQ(calls.all_reduces, 2);  // a forward and a backward
    EXPECT_EQ(calls.all_reduced_bytes, 2 * 32);
    EXPECT_EQ(calls.communicators, 0);
    EXPECT_EQ(calls.others, 0);
    EXPECT_EQ(allocation::count(), host_arrays);
    attention.wait();
    EXPECT_TRUE(same_bits(user.attended(stream.handle()), attended));
    EXPECT_TRUE(same_bits(user.gradients(stream.handle()), gradients));
  });
}

TEST_F(GpuArrays, AreReadAndWrittenInTheOrderOfTheCallersStream) {
  const auto problem = problem_in<float>(plain(), stream.handle());
  for_each_partition(plain(), [&](const GpuCall& options, const RankGrid& grid) {
    const auto want = run<float>(problem, grid, options);
    GpuAttention attention(mpi(MPI_COMM_WORLD), options);
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      emulator::options().seed = seed;
      const cuda::Stream own;
      EXPECT_TRUE(same_bits(in_order_of<float>(problem, grid, attention, own.handle()), want.attended))
          << seed;
    }
    emulator::options() = {};
    EXPECT_TRUE(same_bits(in_order_of<float>(problem, grid, attention, nullptr), want.attended));
  });
}

/// Every call has tables of its own, more than are kept.
TEST_F(GpuArrays, ADropoutMayChangeInEveryCall) {
  if (comm.size() > 2) GTEST_SKIP() << "the same on two ranks";
  Case what = plain();
  what.scoring.dropout.probability = 0.25;
  const auto problem = problem_in<float>(what, stream.handle());
  GpuUser<float> user(problem, RankGrid(comm.rank(), comm.size(), 1));
  GpuAttention attention(mpi(MPI_COMM_WORLD));
  for (std::uint64_t step = 0; step < 70; ++step) {
    user.scoring.dropout.step = step;
    user.enqueue_forward(attention, stream.handle());
  }
  for (std::uint64_t step = 70; step-- > 60;) {
    user.scoring.dropout.step = step;
    user.enqueue(attention, stream.handle());
  }
  attention.wait();
}

TEST_F(GpuArrays, TheRanksTakeArraysOfTheHostAndOtherOptions) {
  const auto problem = problem_in<float>(plain(4), stream.handle());
  const RankGrid grid(comm.rank(), comm.size(), 1);
  const GpuUser<float> user(problem, grid);
  const auto ranks = mpi(MPI_COMM_WORLD);
  GpuAttention attention(ranks);
  const auto [attended, gradients] = user.attend(attention, stream.handle());
  if (comm.size() != 3) {  // heads
    attention.how().division = ulysses();
    const GpuUser<float> slices(problem, RankGrid(comm.rank(), comm.size(), comm.size()));
    (void)slices.attend(attention, stream.handle());
    attention.how().division = ring();
  }
  EXPECT_TRUE(same_bits(user.attend(attention, stream.handle()).first, attended));
  const TokenRanges rows = grid.slice(user.placement.queries);
  const Tensor<float> q = rows_of(problem.forward.q, rows);
  const auto got = forward({ranks}, q, rows_of(problem.forward.k, rows), rows_of(problem.forward.v, rows),
                           user.placement, user.scoring);
  EXPECT_TRUE(agrees(got, problem.forward, rows));
}

// ---- errors --------------------------------------------------------------------------------------------

TEST_F(GpuArrays, WrongArgumentsOfOneRankAreAnErrorOfAll) {
  const auto problem = problem_in<float>(plain(), stream.handle());
  const RankGrid grid(comm.rank(), comm.size(), 1);
  GpuUser<float> user(problem, grid);
  GpuAttention attention(mpi(MPI_COMM_WORLD));
  const int last = comm.size() - 1;
  const auto expect_refused = [&](const std::string& words, const GpuUser<float>& wrong) {
    expect_input_error([&] { (comm.rank() == last ? wrong : user).enqueue(attention, stream.handle()); },
                       words);
  };
  GpuUser<float> other(problem, grid);
  other.scoring.scale = 3;
  if (last > 0) expect_refused("rank " + std::to_string(last) + " has scale 3", other);
  GpuUser<float> on_host(problem, grid);
  const Tensor<float> host(on_host.q.shape());
  on_host.q_view = host;
  expect_refused("q is not in the memory of a GPU", on_host);
  cuda::use_device(1);
  const GpuUser<float> on_another(problem, grid);
  cuda::use_device(0);
  expect_refused("q is in the memory of GPU 1, and GPU 0 is current", on_another);
  GpuUser<float> short_result(problem, grid);
  short_result.lse = cuda::DeviceTensor<float>({1, 1, 1, 1});
  expect_refused("lse is [1, 1, 1, 1] where", short_result);

  (void)user.attend(attention, stream.handle());
  cuda::use_device(comm.rank() == last ? 1 : 0);
  expect_input_error([&] { user.enqueue(attention, stream.handle()); },
                     "GPU 1 is current, and this GpuAttention began on GPU 0");
  cuda::use_device(0);
  (void)user.attend(attention, stream.handle());
}

TEST_F(GpuArrays, AKernelThatIsNotThereIsAnErrorOfAll) {
  const auto problem = problem_in<float>(plain(), stream.handle());
  const GpuUser<float> user(problem, RankGrid(comm.rank(), comm.size(), 1));
  GpuCall options;
  options.gpu.kernel = "none";
  GpuAttention attention(mpi(MPI_COMM_WORLD), options);
  expect_input_error([&] { user.enqueue(attention, stream.handle()); }, "none");
}

/// The GPU of the last rank stops after it has made a call. In a hybrid the ranks of two communicators wait.
TEST_F(GpuArrays, ALostRankIsAnErrorOfWait) {
  if (comm.size() < 3) GTEST_SKIP() << "needs three ranks";
  const int ulysses = comm.size() == 4 ? 2 : 1;
  const auto problem = problem_in<float>(plain(), stream.handle());
  GpuUser<float> user(problem, RankGrid(comm.rank(), comm.size(), ulysses));
  GpuCall options;
  options.division = hybrid(ulysses);
  options.gpu.transport = GpuOptions::Transport::nccl;
  {
    GpuAttention attention(mpi(MPI_COMM_WORLD), options);
    (void)user.attend(attention, stream.handle());
    attention.how().gpu.timeout = std::chrono::seconds(1);
    (void)user.attend(attention, stream.handle());
    const bool lost = comm.rank() + 1 == comm.size();
    std::optional<emulator::FrozenGpu> frozen;
    if (lost) frozen.emplace();
    user.enqueue(attention, stream.handle());
    const double begin = emulator::now();
    if (!lost) {
      EXPECT_THROW(attention.wait(), Error);
      EXPECT_LT(emulator::now() - begin, 10);
      stream.synchronize();  // goes on
      EXPECT_THROW(attention.wait(), Error);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    frozen.reset();
    expect_input_error([&] { user.enqueue(attention, stream.handle()); }, "took more than 1 s");
  }
  (void)emulator::take_error();
  MPI_Barrier(MPI_COMM_WORLD);
}

}  // namespace
}  // namespace ring_attention::test
