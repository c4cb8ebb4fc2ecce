// Lesson 06 between GPUs. The idea is in ring.hpp; this program runs it, compares its result with the library's and the
// reference's, and says how long the GPU waited.
#include "common/nccl.hpp"
#include "ring_attention/cuda/device.hpp"

#define ncclSend ring_attention::gpu::counted_send
#define ncclGroupEnd ring_attention::gpu::counted_group_end
#include LESSON_IDEA
#define lesson early_swap  // the mutant: the same function, in another namespace
#include "mutants/early_swap.hpp"
#undef lesson
#undef ncclGroupEnd
#undef ncclSend

#include "ring_attention/ring/forward.hpp"

using namespace ring_attention;

// This rank's result of `loop(engine)`; what it left on the GPU comes back.
AttentionResult<float> attended(const RandomProblem& problem, const TokenRanges& ranges,
                                const cuda::Stream& compute, const auto& loop) {
  const auto q = cuda::uploaded<float>(problem.queries<float>(ranges), compute.handle());
  CudaEngine<float> engine(problem.scoring, {.stream = compute.handle()});
  engine.begin(q, ranges);
  loop(engine);
  const DeviceAttentionResult there = engine.finish();
  return {cuda::downloaded(there.out, compute.handle()), cuda::downloaded(there.lse, compute.handle())};
}

int nccl_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson("06", "overlapped_ring_nccl",
                "The ring of lesson 06 between GPUs: K,V travel on one stream while another one computes, "
                "and the host\n"
                "waits once, at the end.",
                &comm);
  ProblemFlags flags{.seq = 509, .heads = 4, .kv_heads = 2, .dim = 64};
  bool share = false;
  flags.offer(lesson, {1, 256});
  lesson.options().flag("--share-gpu", share, "More ranks than GPUs, to try it out: correctness only");
  lesson.offer_mutants({{"early-advance", "compute with the parcel that is still arriving"},
                        {"step-too-few", "N - 1 steps, as the paper's algorithm 1 is printed"}});
  lesson.needs_gpu(cuda::why_no_device());
  if (!lesson.parse(argc, argv)) return 0;
  const RandomProblem problem = flags.problem(lesson, Mask::causal());
  gpu::Gpus gpus(comm, share);
  const Ring ring{comm.rank(), comm.size()};
  const Placement placement(PlacementKind::zigzag, problem.kv.seq, comm.size());
  const TokenRanges ranges = placement.ranges(comm.rank());
  const int steps = lesson.mutant("step-too-few") ? comm.size() - 1 : comm.size();

  lesson.heading("The ring, spelled out");
  auto current = gpu::uploaded_parcel(problem, placement, comm.rank(), gpus.compute);
  cuda::DeviceTensor<float> incoming(current.shape());
  double own_exposed = 0;
  std::vector<Index> owners;
  const AttentionResult<float> got = attended(problem, ranges, gpus.compute, [&](CudaEngine<float>& engine) {
    gpu::NotingEngine noting(engine, gpus.compute, comm.size());
    using Noting = decltype(noting);
    const auto loop = lesson.mutant("early-advance") ? early_swap::ring<Noting> : lesson::ring<Noting>;
    loop(noting, current, incoming, problem.kv, placement, ring, gpus.ranks, gpus.compute, gpus.transfer,
         steps);
    own_exposed = noting.exposed_seconds();
    owners = owners_of(noting.steps(), problem, placement, ring);
  });
  const Index hops = gpu::groups;
  const Index bytes = gpu::bytes_sent_from[current.data()] + gpu::bytes_sent_from[incoming.data()];
  lesson.say("  rank 0 on " + cuda::name_of(cuda::current_device()) + ": " + counted(steps, "step") + ", " +
             counted(hops, "hop") + ", " + human_bytes(bytes) + " sent");
  if (gpus.shared) lesson.say("  ranks share a GPU: correctness only, times mean nothing");
  lesson.record("shared_gpu", Index{gpus.shared ? 1 : 0});

  lesson.heading("The agreement");
  lesson.check("at step t rank r computes with the K,V of rank (r - t) mod N", in_turn(owners, ring));
  const auto library = attended(problem, ranges, gpus.compute, [&](CudaEngine<float>& engine) {
    KvParcel<float> host = problem.parcel<float>(placement, comm.rank());
    KvParcel<float, cuda::DeviceMemory> kv(problem.kv, placement, comm.rank(), {gpus.compute.handle()});
    cuda::upload<float>(kv.k(), host.k(), gpus.compute.handle());
    cuda::upload<float>(kv.v(), host.v(), gpus.compute.handle());
    NcclTransport transport(gpus.world, gpus.compute.handle());
    ring_forward(engine, transport, kv);
  });
  lesson.check("bit for bit the library's NcclTransport", same_bits(got, library));
  check_reference(lesson, problem, problem.reference<float>(ranges), got);

  lesson.heading("The cost");
  lesson.check("hops are N - 1, and bytes those of lesson 05",
               hops == comm.size() - 1 && bytes == forward_bytes(problem, placement, ring),
               format("%lld hops, %lld bytes from rank %d", static_cast<long long>(hops),
                      static_cast<long long>(bytes), comm.rank()));
  const double exposed = max_over_ranks(comm, own_exposed);
  lesson.say("  the compute stream waited " + human_seconds(exposed) + " (slowest rank)");
  lesson.record("hops", hops);
  lesson.record("bytes_sent", sum_over_ranks(comm, bytes));
  lesson.record("exposed_seconds", exposed);
  return lesson.finish(counted(comm.size(), "rank") +
                       ": K,V travel while the GPU computes; the host waits once");
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return nccl_lesson(argc, argv, comm); });
}
