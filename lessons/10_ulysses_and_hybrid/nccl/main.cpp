// Lesson 10 between GPUs. The idea is in ulysses.hpp; this program runs it forward and backward, and compares its
// results with the library's and the reference's.
#include LESSON_IDEA

#include "common/nccl.hpp"

#include "../part.hpp"
#include "ring_attention/parallel/head_layout.hpp"
#include "ring_attention/parallel/nccl_all_to_all.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_10;

using Array = cuda::DeviceTensor<float>;

// Forward and backward of a rank's part. \param layout  moves arrays between the two layouts
// \param make_transport  makes this rank's transport of the ring
Outcome run_on_gpu(const Part& part, const auto& layout, auto make_transport, cuda::StreamHandle stream) {
  const auto there = [&](const Tensor<float>& array) { return cuda::uploaded<float>(array, stream); };
  const auto here = [&](const Array& array) { return cuda::downloaded(array, stream); };
  const cuda::DeviceMemory memory{stream};
  const Tensor<float> q_rows = part.q(), k_rows = part.k();
  const Array q = layout.to_heads(there(q_rows)), k = layout.to_heads(there(k_rows)),
              v = layout.to_heads(there(part.v())), grad_out = layout.to_heads(there(part.grad_out()));
  const int rank = part.ring().rank();
  const auto parcel = [&] {
    KvParcel<float, cuda::DeviceMemory> kv(k.shape(), part.placement(), rank, memory);
    memory.copy(kv.k().elements(), k.view().elements());
    memory.copy(kv.v().elements(), v.view().elements());
    return kv;
  };
  auto kv = parcel(), again = parcel();
  KvParcel<float, cuda::DeviceMemory> gradients(k.shape(), part.placement(), rank, memory);
  CudaEngine<float> engine(part.scoring(), {.stream = stream});
  engine.begin(q, part.placement().ranges(rank));
  auto transport = make_transport(), kv_transport = make_transport(), gradient_transport = make_transport();
  ring_forward(engine, transport, kv);
  const DeviceAttentionResult own = engine.finish();
  CudaBackward<float> backward(part.scoring(), {.stream = stream});
  backward.begin({q, own.out, own.lse, grad_out}, part.placement().ranges(rank));
  ring_backward(backward, kv_transport, gradient_transport, again, gradients);
  if (part.returns_zeros()) memory.zero(gradients.elements());

  const Index heads = q_rows.shape().heads, kv_heads = k_rows.shape().heads;
  const auto back = [&](View<const float> y, Index all) { return here(layout.to_sequence(y, all)); };
  const Tensor<float> out = back(own.out, heads), lse = back(own.lse, heads),
                      dq = back(backward.finish(), heads);
  Tensor<float> dk = back(gradients.k(), kv_heads), dv = back(gradients.v(), kv_heads);
  return {{part.in_order(out), part.in_order(lse)}, {part.in_order(dq), std::move(dk), std::move(dv)}};
}

// The lesson's way between the layouts, and the library's.
struct Here {
  lesson::Line queries, keys;
  lesson::Nccl link;
  Index query_heads;
  [[nodiscard]] const lesson::Line& line(Index heads) const { return heads == query_heads ? queries : keys; }
  Array to_heads(const Array& x) const { return lesson::to_heads(x, line(x.shape().heads), link); }
  Array to_sequence(View<const float> y, Index heads) const {
    return lesson::to_sequence(y, line(heads), link);
  }
};
struct Library {
  const HeadLayout<NcclAllToAll, cuda::DeviceMemory>& layout;
  Index query_heads;
  Array to_heads(const Array& x) const {
    return x.shape().heads == query_heads ? layout.queries_to_heads(x.view())
                                          : layout.keys_to_heads(x.view());
  }
  Array to_sequence(View<const float> y, Index heads) const {
    return heads == query_heads ? layout.queries_to_sequence(y) : layout.keys_to_sequence(y);
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
  const Part part(comm, problem, most_that_share(problem, comm.size()), lesson);
  NcclWorld heads(part.heads(), {.share_gpu = gpus.shared}), ring(part.ring(), {.share_gpu = gpus.shared});
  const gpu::OwnNccl own(part.heads());
  const cuda::StreamHandle stream = gpus.compute.handle();
  const auto make_transport = [&] { return NcclTransport(ring, stream); };

  lesson.heading(format("The agreement: U = %d share heads, R = %d are a ring", part.heads().size(),
                        part.ring().size()));
  const Here here{part.queries(), part.keys(), {own.handle(), {stream}}, problem.q.heads};
  const Outcome got = run_on_gpu(part, here, make_transport, stream);
  NcclAllToAll link(heads, stream);
  const HeadLayout layout(link, part.place(), part.placement(), part.placement(), problem.q.heads,
                          problem.kv.heads, cuda::DeviceMemory{stream});
  const Outcome library = run_on_gpu(part, Library{layout, problem.q.heads}, make_transport, stream);
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
  lesson.say("  the all-to-alls took " + human_seconds(exposed) + " (slowest rank): all of it is exposed");
  lesson.record("ulysses", Index{part.heads().size()});
  lesson.record("bytes_sent", sum_over_ranks(comm, bytes));
  lesson.record("exposed_seconds", exposed);
  return lesson.finish(counted(comm.size(), "rank") + format(": U = %d", part.heads().size()) +
                       ": tokens for heads and back, between GPUs");
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return nccl_lesson(argc, argv, comm); });
}
