// Each wait of NcclTransport, of NcclAllToAll and of the lessons' rings over NCCL is needed: without it some seed gives a
// wrong number. The program is linked with copies of their sources, in which waits can be left out.

#include <gtest/gtest.h>

#include "common/nccl.hpp"
#include "cuda/gpu_user.hpp"
#include "cuda/needed_barriers.hpp"
#include "cuda/parallel_runs.hpp"
#include "emulator/streams.hpp"
#include "ring_attention/parallel/cuda_links.hpp"
#include "ring_attention/parallel/ulysses/ulysses.hpp"

#define lesson lesson_06_nccl
#include "lesson_06_ring.hpp"
#undef lesson
#define lesson lesson_08_nccl
#include "lesson_08_ring.hpp"
#undef lesson

#include "08_ring_backward/part.hpp"

namespace ring_attention::test {
namespace {

class NcclWaits : public testing::Test {
 protected:
  /// True if body() returns true on all ranks.
  bool on_all_ranks(const auto& body) {
    int good = 0;
    emulator::patience() = emulator::options().ignore ? 2 : 60;  // a rank that fails leaves others waiting
    try {
      good = body() ? 1 : 0;
    } catch (const Error&) {
    }
    if (!emulator::take_error().empty()) good = 0;  // of what was still enqueued
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return good == 1;
  }

  /// `agrees` is right with the first seeds, and wrong with some seed without any one of its waits.
  void expect_every_wait_needed(const char* name, std::size_t waits, const char* in_files,
                                const auto& agrees) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      emulator::options().seed = seed;
      EXPECT_TRUE(on_all_ranks(agrees)) << name << ", seed " << seed;
    }
    expect_all_needed(name, [&](std::uint64_t) { return on_all_ranks(agrees); }, 40, waits, in_files);
  }

  /// Of NCCL: without a wait, a message may never come.
  static std::chrono::seconds timeout() { return std::chrono::seconds(emulator::options().ignore ? 1 : 60); }

  /// Forward and backward with `ulysses` ranks that share heads.
  bool hybrid_agrees(const GradientProblem<float>& problem, int ulysses, const RankRun<float>& want) {
    const RankGrid grid(comm.rank(), comm.size(), ulysses);
    const cuda::Stream stream;
    CudaLinks links(comm, grid.ulysses, grid.ring, stream.handle(), {.timeout = timeout()});
    const auto got = run_rank_on_gpu<float>(problem, {ulysses, comm.size() / ulysses}, links, comm.rank(),
                                            stream.handle());
    return same_bits(got.attended, want.attended) && same_bits(got.gradients, want.gradients);
  }
  /// The forward of an Attention, which enqueues only, on a stream of the caller. Its first call has messages of MPI: no rank
  /// may fail alone before them.
  bool enqueued_agrees(const GradientProblem<float>& problem, int ulysses, const RankRun<float>& want) {
    GpuCall options;
    options.division = hybrid(ulysses);
    options.gpu.timeout = timeout();
    const cuda::Stream stream;
    GpuAttention attention(mpi(MPI_COMM_WORLD), options);
    const RankGrid grid(comm.rank(), comm.size(), ulysses);
    const auto got = in_order_of<float>(problem, grid, attention, stream.handle());
    attention.wait();
    return same_bits(got, want.attended);
  }
  void expect_waits_of_hybrid_needed(const char* name, int ulysses, std::size_t waits, const char* in_files,
                                     bool enqueues) {
    const auto problem = problem_in<float>({.kv_heads = 3,
                                            .group = 1,
                                            .queries = 13,
                                            .keys = 13,
                                            .dim = 8,
                                            .scoring = {0.5, Mask::causal()},
                                            .kind = PlacementKind::zigzag},
                                           nullptr);
    const auto want = run_on_gpu<float>(problem, {ulysses, comm.size() / ulysses});
    expect_every_wait_needed(name, waits, in_files, [&] {
      const auto& mine = want[comm.rank()];
      if (!enqueues) return hybrid_agrees(problem, ulysses, mine);
      // A rank that fails in one of them is not missed in the other one.
      return on_all_ranks([&] { return hybrid_agrees(problem, ulysses, mine); }) &&
             on_all_ranks([&] { return enqueued_agrees(problem, ulysses, mine); });
    });
  }

  RandomProblem small_problem(const Mask& mask) const {
    return {{1, 2, 24, 8}, {1, 1, 24, 8}, {default_scale(8), mask}, 1};
  }

  Communicator comm{MPI_COMM_WORLD};
};

TEST_F(NcclWaits, OfTheTransportAreNeeded) {
  expect_waits_of_hybrid_needed("NcclTransport", 1, 6, "/nccl.cpp", false);
}

TEST_F(NcclWaits, OfTheAllToAllAreNeeded) {
  expect_waits_of_hybrid_needed("NcclAllToAll", comm.size(), 3, "/nccl_all_to_all.cpp", true);
}

TEST_F(NcclWaits, ForTheStreamOfTheCallerAreNeeded) {
  expect_waits_of_hybrid_needed("Attention", 1, 2, "/gpu_attention.cpp", true);
}

TEST_F(NcclWaits, OfTheRingOfLesson06AreNeeded) {
  const RandomProblem problem = small_problem(Mask::causal());
  const Ring ring{comm.rank(), comm.size()};
  const Placement placement(PlacementKind::zigzag, problem.kv.seq, comm.size());
  const TokenRanges ranges = placement.ranges(comm.rank());
  const Reference want = problem.reference<float>(ranges);
  const gpu::OwnNccl nccl(comm);
  expect_every_wait_needed("lesson 06", 2, "/ring.hpp", [&] {
    const cuda::Stream compute, transfer{cuda::Stream::Priority::high};
    auto current = gpu::uploaded_parcel<float>(problem, placement, comm.rank(), compute);
    cuda::DeviceTensor<float> incoming(current.shape());
    const auto q = cuda::uploaded<float>(problem.queries<float>(ranges), compute.handle());
    CudaEngine<float> engine(problem.scoring, {.stream = compute.handle()});
    engine.begin(q, ranges);
    lesson_06_nccl::ring(engine, current, incoming, problem.kv, placement, ring, nccl.handle(), compute,
                         transfer);
    const AttentionResult<float> got = downloaded(engine.finish(), compute.handle());
    const Tolerance tolerance = problem.tolerance<float>(want);
    return compare(got.out, want.out, tolerance).ok && compare(got.lse, want.lse, tolerance).ok;
  });
}

TEST_F(NcclWaits, OfTheRingOfLesson08AreNeeded) {
  const RandomProblem problem = small_problem({});
  const lesson_08::RankShare part(comm, problem);
  const BackwardInputs<float> result = part.result();
  const gpu::OwnNccl nccl(comm);
  expect_every_wait_needed("lesson 08", 2, "/ring.hpp", [&] {
    const cuda::Stream compute, transfer{cuda::Stream::Priority::high};
    const auto there = [&](View<const float> array) {
      return cuda::uploaded<float>(array, compute.handle());
    };
    const auto q = there(result.q), out = there(result.out), lse = there(result.lse),
               grad_out = there(result.grad_out);
    CudaBackward<float> engine(problem.scoring, {.stream = compute.handle()});
    engine.begin({q, out, lse, grad_out}, part.ranges);
    auto first = gpu::uploaded_parcel<float>(problem, part.placement, comm.rank(), compute);
    const Shape all = first.shape();
    lesson_08_nccl::Parcel<float> kv{std::move(first), cuda::DeviceTensor<float>(all)};
    lesson_08_nccl::Parcel<float> gradients{cuda::DeviceTensor<float>(all), cuda::DeviceTensor<float>(all)};
    lesson_08_nccl::ring(engine, kv, gradients, problem.kv, part.placement, {comm.rank(), comm.size()},
                         nccl.handle(), compute, transfer, part.ring().gradient_hops());
    const Shape shard = problem.kv.with_seq(part.placement.tokens(comm.rank()));
    const View<const float> k(gradients.current.data(), shard), v(k.data() + k.size(), shard);
    const Gradients<float> got{cuda::downloaded(engine.finish(), compute.handle()),
                               cuda::downloaded<float>(k, compute.handle()),
                               cuda::downloaded<float>(v, compute.handle())};
    return std::ranges::all_of(lesson_08::compare_all(part, got), [](const Comparison& c) { return c.ok; });
  });
}

}  // namespace
}  // namespace ring_attention::test
