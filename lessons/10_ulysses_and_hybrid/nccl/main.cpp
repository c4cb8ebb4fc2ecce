// Lesson 10 between GPUs. The idea is in ulysses.hpp; this program runs it forward and backward, and compares its
// results with the library's and the reference's.
#include LESSON_IDEA

#include "common/nccl.hpp"

#include "../part.hpp"
#include "ring_attention/parallel/collectives/nccl_all_to_all.hpp"
#include "ring_attention/parallel/cuda_device.hpp"
#include "ring_attention/parallel/cuda_links.hpp"
#include "ring_attention/parallel/ulysses/ulysses.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_10;

using Array = Tensor<float>;  // in the memory of the GPU

// Forward and backward of a rank's part. \param layout  moves arrays between the two layouts
// \param ring  of the library, for the heads of this rank
Result run_on_gpu(const RankShare& part, const auto& layout, ContextParallel<float>& ring,
                  cuda::StreamHandle stream) {
  const auto there = [&](const Tensor<float>& array) { return cuda::uploaded<float>(array, stream); };
  const Tensor<float> q_rows = part.q(), k_rows = part.k();
  const Array q = layout.to_heads(there(q_rows)), k = layout.to_heads(there(k_rows)),
              v = layout.to_heads(there(part.v())), grad_out = layout.to_heads(there(part.grad_out()));
  const AttentionResult<float> own = ring.forward(q, k, v);
  Gradients<float> gradients = ring.backward({q, own.out, own.lse, grad_out}, k, v);
  if (part.returns_zeros()) {
    const cuda::DeviceMemory memory(stream);
    memory.zero(gradients.k.view().elements());
    memory.zero(gradients.v.view().elements());
  }

  const auto back = [&](const Array& y, Index all) {
    return cuda::downloaded(layout.to_sequence(y, all), stream);
  };
  const Index heads = q_rows.shape().heads, kv_heads = k_rows.shape().heads;
  const Tensor<float> out = back(own.out, heads), lse = back(own.lse, heads), dq = back(gradients.q, heads);
  Tensor<float> dk = back(gradients.k, kv_heads), dv = back(gradients.v, kv_heads);
  return {{part.in_order(out), part.in_order(lse)}, {part.in_order(dq), std::move(dk), std::move(dv)}};
}

// The lesson's way between the layouts, and the library's.
struct Here {
  lesson::UlyssesGroup queries, keys;
  lesson::Nccl link;
  Index query_heads;
  [[nodiscard]] const lesson::UlyssesGroup& group(Index heads) const {
    return heads == query_heads ? queries : keys;
  }
  [[nodiscard]] Array to_heads(const Array& x) const {
    return lesson::to_heads(x, group(x.shape().heads), link);
  }
  [[nodiscard]] Array to_sequence(const Array& y, Index heads) const {
    return lesson::to_sequence(y, group(heads), link);
  }
};
struct Library {
  const HeadLayout& layout;
  const cuda::DeviceMemory& memory;
  Index query_heads;
  [[nodiscard]] Array to_heads(const Array& x) const {
    return owned(memory, x.shape().heads == query_heads ? layout.to_heads(Held::queries, x)
                                                        : layout.to_heads(Held::keys, x));
  }
  [[nodiscard]] Array to_sequence(const Array& y, Index heads) const {
    return owned(memory, heads == query_heads ? layout.to_sequence(Held::queries, y)
                                              : layout.to_sequence(Held::keys, y));
  }
};

// The most ranks that can share the heads, of those that divide all.
int most_that_share(const RandomProblem& problem, int ranks) {
  int most = 1;
  for (int ulysses = 1; ulysses <= ranks; ++ulysses)
    if (ranks % ulysses == 0 && can_share_heads(problem.q.heads, problem.kv.heads, ulysses)) most = ulysses;
  return most;
}

int nccl_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson("10", "ulysses_and_hybrid_nccl",
                "Tokens for heads between GPUs: an all-to-all is a group of sends and receives.", &comm);
  gpu::Flags flags{{.seq = 128, .heads = 8, .kv_heads = 2, .dim = 32}};
  flags.offer(lesson);
  lesson.offer_mutants(mutants);
  if (!lesson.parse(argc, argv)) return 0;
  RandomProblem problem = flags.problem.problem(lesson, Mask::causal());
  problem.scoring.alibi_slopes = alibi_slopes(problem.q.heads);
  const gpu::Gpus gpus(comm, flags.share);
  const RankShare part(comm, problem, most_that_share(problem, comm.size()), lesson);
  const cuda::StreamHandle stream = gpus.compute.handle();
  NcclAllToAll link(std::make_shared<NcclWorld>(part.heads(), NcclOptions{.share_gpu = gpus.shared}), stream);
  const SharedAttention shared = part.own_heads();
  CudaLinks links(part.ring(), shared.grid.ulysses, shared.grid.ring, stream, {.share_gpu = gpus.shared});
  const gpu::OwnNccl own(part.heads());
  const CudaDevice<float> device({.stream = stream}, {.stream = stream});
  ContextParallel<float> ring(device, links, shared);

  lesson.heading(format("The agreement: U = %d share heads, R = %d are a ring", part.heads().size(),
                        part.ring().size()));
  const Here here{part.queries(), part.keys(), {own.handle(), stream}, problem.q.heads};
  const Result got = run_on_gpu(part, here, ring, stream);
  const cuda::DeviceMemory memory(stream);
  const UlyssesLayout layout(link, part.grid(), part.placement(), problem.q.heads, problem.kv.heads, memory);
  const Result library = run_on_gpu(part, Library{layout, memory, problem.q.heads}, ring, stream);
  lesson.check("bit for bit the library's NcclAllToAll",
               same_bits(got.attended, library.attended) && same_bits(got.gradients, library.gradients));
  lesson.check("out, lse, dQ, dK, dV agree with the dense reference in double", part.against_reference(got));

  lesson.heading("The cost");
  gpus.describe(lesson);
  const Index bytes = link.statistics().bytes_sent;
  lesson.check("NcclAllToAll sends as many bytes as derived",
               bytes == part.forward_bytes() + part.backward_bytes(),
               format("%lld bytes by all-to-all from rank %d", static_cast<long long>(bytes), comm.rank()));
  const double exposed = max_over_ranks(comm, link.statistics().exposed_seconds);
  if (!gpu::emulated())
    lesson.say("  the all-to-alls took " + human_seconds(exposed) + " (slowest rank): all of it is exposed");
  return lesson.finish(counted(comm.size(), "rank") + format(": U = %d", part.heads().size()) +
                       ": tokens for heads and back, between GPUs");
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return nccl_lesson(argc, argv, comm); });
}
