// Lesson 08 between GPUs. The idea is in ring.hpp; this program runs it, compares its result with the library's and the
// reference's, and times it: blocking, overlapped, and its two parts alone.
#include "common/nccl.hpp"

#define ncclSend ring_attention::gpu::counted_send
#include LESSON_IDEA
#undef ncclSend

#include "../part.hpp"
#include "runs.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_08;

/// Runs `loop(engine)` on a rank's part, which returns its dK,dV on the GPU: K's, then V's.
Gradients<float> gradients_of(const RankShare& part, const RingMistake& mistake, const cuda::Stream& compute,
                              const auto& loop) {
  const cuda::StreamHandle stream = compute.handle();
  const auto there = [&](View<const float> array) { return cuda::uploaded<float>(array, stream); };
  const BackwardInputs<float> result = part.result(mistake);
  const auto q = there(result.q), out = there(result.out), lse = there(result.lse),
             grad_out = there(result.grad_out);
  CudaBackward<float> engine(part.problem.scoring, {.stream = stream});
  engine.begin({q, out, lse, grad_out}, part.ranges);
  const Tensor<float> parcel = loop(engine);
  const Shape shard = part.problem.kv.with_seq(part.placement.tokens(part.comm.rank()));
  return {cuda::downloaded(engine.finish(), stream),
          cuda::downloaded<float>(View<const float>(parcel.data(), shard), stream),
          cuda::downloaded<float>(View<const float>(parcel.data() + shard.size(), shard), stream)};
}

/// The seconds from `earlier` to `later`, or 0 if it was not later.
double waited(const cuda::Event& earlier, const cuda::Event& later) {
  return std::max(later.seconds_since(earlier), 0.0);
}

/// What a ring cost. The compute stream waits for dK,dV after a step's kernel, and for K,V after that.
Cost cost_of(const lesson::Parcel<float>& kv, const lesson::Parcel<float>& gradients,
             const gpu::NotedSteps& noted) {
  Cost cost;
  const auto count = [](mpi_counter::Traffic& traffic, const lesson::Parcel<float>& parcel) {
    traffic.hops = static_cast<Index>(parcel.arrived.size());
    for (const void* buffer : {parcel.current.data(), parcel.incoming.data()})
      traffic.bytes += gpu::bytes_sent_from[buffer];
  };
  count(cost[0], kv);
  count(cost[1], gradients);
  for (std::size_t hop = 0; hop < gradients.arrived.size(); ++hop)
    cost[1].exposed_seconds +=
        waited(noted.end_of(std::min(hop + 1, kv.arrived.size())), gradients.arrived[hop]);
  for (std::size_t hop = 0; hop < kv.arrived.size(); ++hop) {
    double exposed = waited(noted.end_of(hop), kv.arrived[hop]);
    if (0 < hop && hop <= gradients.arrived.size())
      exposed = std::min(exposed, waited(gradients.arrived[hop - 1], kv.arrived[hop]));
    cost[0].exposed_seconds += exposed;
  }
  return cost;
}

/// The same with the library's loop and transport.
Gradients<float> library_backward(const RankShare& part, gpu::Gpus& gpus) {
  return gradients_of(part, ring_mistake(""), gpus.compute, [&](BackwardEngine<float>& engine) {
    auto kv = gpu::library_parcel<float>(part.problem, part.placement, part.comm.rank(), gpus);
    KvParcel<float> gradients(part.problem.kv, part.placement, part.comm.rank(), gpus.memory);
    NcclTransport kv_transport(gpus.world, gpus.compute.handle()),
        gradient_transport(gpus.world, gpus.compute.handle());
    ring_backward(engine, kv_transport, gradient_transport, kv, gradients);
    cuda::DeviceTensor<float> parcel(part.problem.kv.with_seq(2 * part.placement.max_tokens()));
    gpus.memory.copy(parcel.view().elements().first(gradients.elements().size()),
                     std::span<const float>(gradients.elements()));
    return parcel;
  });
}

int nccl_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "08", "ring_backward_nccl",
      "The backward's ring between GPUs: K,V travel, dK,dV follow one step behind, and the GPU computes.",
      &comm);
  gpu::Flags flags{{.seq = 509, .heads = 4, .kv_heads = 2, .dim = 32}};
  flags.offer(lesson, true);
  lesson.offer_mistakes(mutants);
  if (!lesson.parse(argc, argv)) return 0;
  const RandomProblem problem = flags.problem.problem(lesson);
  gpu::Gpus gpus(comm, flags.share);
  const RingMistake& mistake = ring_mistake(lesson.mistake_of(mutants));
  const RankShare part(comm, problem);

  lesson.heading("The agreement");
  Cost cost;
  const auto got = gradients_of(part, mistake, gpus.compute, [&](BackwardEngine<float>& engine) {
    gpu::NotedSteps notes(gpus.compute, comm.size());
    NotingBackward noting(engine, notes);
    lesson::Parcel<float> kv{gpu::uploaded_parcel<float>(problem, part.placement, comm.rank(), gpus.compute),
                             {}};
    kv.incoming = cuda::DeviceTensor<float>(kv.current.shape());
    lesson::Parcel<float> gradients{cuda::DeviceTensor<float>(kv.current.shape()),
                                    cuda::DeviceTensor<float>(kv.current.shape())};
    lesson::ring(noting, kv, gradients, problem.kv, part.placement, {comm.rank(), comm.size()}, gpus.ranks,
                 gpus.compute, gpus.transfer, gradient_hops(mistake, part.ring()));
    cost = cost_of(kv, gradients, notes);
    return std::move(gradients.current);
  });
  lesson.check("bit for bit the library's ring backward over NcclTransport",
               same_bits(got, library_backward(part, gpus)));
  check_gradients(lesson, part, got);

  lesson.heading("The cost");
  gpus.describe(lesson);
  lesson.check("hops are N - 1 of K,V and N of dK,dV (0 when N = 1), bytes as derived",
               cost_is_right(part, cost),
               format("%lld and %lld hops from rank %d", static_cast<long long>(cost[0].hops),
                      static_cast<long long>(cost[1].hops), comm.rank()));
  const double kv_exposed = max_over_ranks(comm, cost[0].exposed_seconds);
  const double gradients_exposed = max_over_ranks(comm, cost[1].exposed_seconds);
  if (!gpu::emulated())
    lesson.say("  the compute stream waited " + human_seconds(kv_exposed) + " for K,V and " +
               human_seconds(gradients_exposed) + " for dK,dV (slowest rank)");

  lesson.heading("When a hop hides");
  gpu::show_times(lesson, {.flops = 10, .bytes_besides_elements = sizeof(float)}, flags, gpus, comm,
                  [&]<class T>(const RandomProblem& some, const Placement& placed, T) {
                    return BackwardRun<T>(some, placed, comm, gpus);
                  });
  return lesson.finish(counted(comm.size(), "rank") + ": dK,dV are back at their owner after " +
                       counted(part.ring().gradient_hops(), "hop") + ", exact");
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return nccl_lesson(argc, argv, comm); });
}
