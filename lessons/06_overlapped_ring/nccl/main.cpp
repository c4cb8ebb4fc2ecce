// Lesson 06 between GPUs. The idea is in ring.hpp; this program runs it, compares its result with the library's and the
// reference's, and times it: blocking, overlapped, and its two parts alone.
#include "common/nccl.hpp"

#define ncclSend ring_attention::gpu::counted_send
#define ncclGroupEnd ring_attention::gpu::counted_group_end
#include LESSON_IDEA
#undef ncclGroupEnd
#undef ncclSend

#include "common/ring_mutants.hpp"
#include "mistakes/mistaken_ring.hpp"
#include "ring_attention/ring/forward.hpp"
#include "runs.hpp"

using namespace ring_attention;

// This rank's result of `loop(engine)`; what it left on the GPU comes back.
template <class T>
AttentionResult<float> attended(const RandomProblem& problem, const TokenRanges& ranges,
                                const cuda::Stream& compute, const auto& loop) {
  const auto q = cuda::uploaded<T>(problem.queries<float>(ranges), compute.handle());
  CudaEngine<T> engine(problem.scoring, {.stream = compute.handle()});
  engine.begin(q, ranges);
  loop(engine);
  const AttentionResult<float> there = engine.finish();
  return {cuda::downloaded(there.out, compute.handle()), cuda::downloaded(there.lse, compute.handle())};
}

// The lesson's result in T, and that of the library. \param loop  loop(engine, current, incoming)
template <class T>
void compare_in(Lesson& lesson, const RandomProblem& problem, const Placement& placement, gpu::Gpus& gpus,
                int rank, const auto& loop) {
  const TokenRanges ranges = placement.ranges(rank);
  const AttentionResult<float> got = attended<T>(problem, ranges, gpus.compute, [&](Engine<T>& engine) {
    auto current = gpu::uploaded_parcel<T>(problem, placement, rank, gpus.compute);
    cuda::DeviceTensor<T> incoming(current.shape());
    loop(engine, current, incoming);
  });
  const auto library = attended<T>(problem, ranges, gpus.compute, [&](Engine<T>& engine) {
    auto kv = gpu::library_parcel<T>(problem, placement, rank, gpus);
    NcclTransport transport(gpus.world, gpus.compute.handle());
    ring_forward(engine, transport, kv);
  });
  const std::string in = std::string(" in ") + cuda::name_of(cuda::type_of<T>);
  lesson.check("bit for bit the library's NcclTransport" + in, same_bits(got, library));
  const Reference want = gpu::reference_in<T>(problem, ranges, gpus.compute);
  lesson.check("out" + in + " agrees with the dense reference in double",
               compare(got.out, want.out, gpu::tolerance_in<T>(problem, want)));
  lesson.check("lse" + in + " agrees with the dense reference in double",
               compare(got.lse, want.lse, problem.tolerance<float>(want)));
}

int nccl_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson("06", "overlapped_ring_nccl",
                "The ring of lesson 06 between GPUs: K,V travel on one stream while another one computes, "
                "and the host\n"
                "waits once, at the end.",
                &comm);
  gpu::Flags flags{{.seq = 509, .heads = 4, .kv_heads = 2, .dim = 64}};
  flags.offer(lesson, true);
  const std::vector mutants{early_advance, algorithm_1_as_printed};
  lesson.offer_mistakes(mutants);
  if (!lesson.parse(argc, argv)) return 0;
  const RandomProblem problem = flags.problem.problem(lesson, Mask::causal());
  gpu::Gpus gpus(comm, flags.share);
  const Ring ring{comm.rank(), comm.size()};
  const Placement placement(PlacementKind::zigzag, problem.kv.seq, comm.size());
  const RingMistake& mistake = ring_mistake(lesson.mistake_of(mutants));
  const auto loop = [&]<class T>(Engine<T>& engine, cuda::DeviceTensor<T>& current,
                                 cuda::DeviceTensor<T>& incoming) {
    MistakenEngine<T> given({std::shared_ptr<void>(), &engine},
                            {mistake, ring, placement, [&] { return incoming.data(); }}, problem.q.heads);
    lesson::ring(given, current, incoming, problem.kv, placement, ring, gpus.ranks, gpus.compute,
                 gpus.transfer);
  };

  lesson.heading("The ring, spelled out");
  auto current = gpu::uploaded_parcel<float>(problem, placement, comm.rank(), gpus.compute);
  cuda::DeviceTensor<float> incoming(current.shape());
  double own_exposed = 0;
  std::vector<Index> owners;
  (void)attended<float>(problem, placement.ranges(comm.rank()), gpus.compute, [&](Engine<float>& engine) {
    gpu::NotedSteps notes(gpus.compute, comm.size());
    NotingEngine noting(engine, notes);
    loop(noting, current, incoming);
    own_exposed = notes.exposed_seconds();
    owners = owners_of(notes.steps(), problem, placement, ring);
  });
  const Index hops = gpu::groups;
  const Index bytes = gpu::bytes_sent_from[current.data()] + gpu::bytes_sent_from[incoming.data()];
  gpus.describe(lesson);
  lesson.say("  " + counted(comm.size(), "step") + ", " + counted(hops, "hop") + ", " + human_bytes(bytes) +
             " sent by rank 0");

  lesson.heading("The agreement");
  lesson.check("at step t rank r computes with the K,V of rank (r - t) mod N", in_turn(owners, ring));
  compare_in<float>(lesson, problem, placement, gpus, comm.rank(), loop);
  compare_in<Bf16>(lesson, problem, placement, gpus, comm.rank(), loop);

  lesson.heading("The cost");
  lesson.check("hops are N - 1, and bytes those of lesson 05",
               hops == comm.size() - 1 && bytes == forward_bytes(problem, placement, ring),
               format("%lld hops, %lld bytes from rank %d", static_cast<long long>(hops),
                      static_cast<long long>(bytes), comm.rank()));
  const double exposed = max_over_ranks(comm, own_exposed);
  if (!gpu::emulated())
    lesson.say("  the compute stream waited " + human_seconds(exposed) + " (slowest rank)");

  lesson.heading("When a hop hides");
  gpu::show_times(lesson, {.flops = 4, .bytes_besides_elements = 0}, flags, gpus, comm,
                  [&]<class T>(const RandomProblem& part, const Placement& of_part, T) {
                    return lesson_06::ForwardRun<T>(part, of_part, comm, gpus);
                  });
  return lesson.finish(counted(comm.size(), "rank") +
                       ": K,V travel while the GPU computes; the host waits once");
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return nccl_lesson(argc, argv, comm); });
}
