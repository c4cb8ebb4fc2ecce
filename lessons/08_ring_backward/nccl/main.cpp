// Lesson 08 between GPUs. Beside the lesson's loop only this differs: hops and sums are enqueued, on two streams, and
// events say what comes after what.
#include "common/lesson.hpp"
#include "common/nccl.hpp"
#include "../part.hpp"
#include "ring_attention/cuda/engine.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_08;

namespace {

using Engine = CudaBackward<float>;
using Parcel = KvParcel<float, cuda::DeviceMemory>;

/// K,V or dK,dV, and the hops that they have made.
struct Travelling {
  Parcel& parcel;
  std::vector<gpu::Hop> hops = {};
  Traffic traffic = {};
};

// ---- The idea ------------------------------------------------------------------------------------------
// At step t rank r holds the K,V of rank (r - t) mod N. K,V make N - 1 hops; their dK,dV follow one beat behind and
// make `gradient_hops`: N, or none when N = 1. All hops stand on one stream, in the same order on every rank: that order
// is what pairs a send with its receive.
Cost nccl_backward(Engine& engine, Parcel& kv_parcel, Parcel& gradient_parcel, const Ring& ring,
                   ncclComm_t comm, const cuda::Stream& compute, const cuda::Stream& transfer,
                   int gradient_hops) {
  Travelling kv{kv_parcel}, gradients{gradient_parcel};
  const auto start = [&](Travelling& c, int step) {  // lesson 06: when all before it has been computed
    const auto [out, in] = c.parcel.exchange(ring.owner(step + 1));
    c.hops.emplace_back();
    c.hops.back().ready.record(compute.handle());
    c.hops.back().ready.block(transfer.handle());
    gpu::check(ncclGroupStart());
    if (!out.empty())
      gpu::check(ncclSend(out.data(), out.size(), ncclUint8, ring.next(), comm, transfer.handle()));
    if (!in.empty())
      gpu::check(ncclRecv(in.data(), in.size(), ncclUint8, ring.prev(), comm, transfer.handle()));
    gpu::check(ncclGroupEnd());
    c.hops.back().arrived.record(transfer.handle());
    c.traffic = {c.traffic.hops + 1, c.traffic.bytes + static_cast<Index>(out.size()), 0};
  };
  const auto finish = [&](Travelling& c) {  // what is enqueued from here on sees the parcel
    c.hops.back().idle.record(compute.handle());
    c.hops.back().arrived.block(compute.handle());
    c.hops.back().resumed.record(compute.handle());
    c.parcel.advance();
  };

  const cuda::DeviceMemory& memory = gradient_parcel.memory();
  KvBuffer<float, cuda::DeviceMemory>& added = gradient_parcel.spare_buffer();  // by one step, on this rank
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    const int owner = kv_parcel.owner();
    if (!last) start(kv, step);

    memory.zero(added.elements(owner));
    engine.accumulate(kv_parcel.current(), {added.k(owner), added.v(owner)});  // dQ stays

    if (0 < step && step <= gradient_hops) finish(gradients);  // the dK,dV of these K,V, from the rank before
    memory.add(gradient_parcel.elements(), std::span<const float>(added.elements(owner)));
    if (step < gradient_hops) start(gradients, step);
    if (!last) finish(kv);
  }
  if (gradient_hops == ring.steps()) finish(gradients);  // home, with what all N ranks added
  transfer.synchronize();
  compute.synchronize();
  kv.traffic.exposed_seconds = gpu::exposed_seconds(kv.hops);
  gradients.traffic.exposed_seconds = gpu::exposed_seconds(gradients.hops);
  return {kv.traffic, gradients.traffic};
}
// --------------------------------------------------------------------------------------------------------

/// N hops bring dK,dV home. A ring of one has nowhere to send them.
int gradient_hops(Variant variant, int ranks) {
  if (ranks == 1 || variant == Variant::stay_local) return 0;
  return variant == Variant::hop_too_few ? ranks - 1 : ranks;
}

/// Runs `loop(engine, kv, gradients)` on a rank's part; what it leaves on the GPU comes back.
Gradients<float> gradients_of(const Part& part, Variant variant, const cuda::Stream& compute,
                              const auto& loop) {
  const cuda::StreamHandle stream = compute.handle();
  const auto there = [&](View<const float> array) { return cuda::uploaded<float>(array, stream); };
  const ForwardResult<float> result = part.result(variant);
  const auto q = there(result.q), out = there(result.out), lse = there(result.lse),
             grad_out = there(result.grad_out);
  const cuda::DeviceMemory memory{stream};
  Parcel kv(part.problem.kv, part.placement, part.comm.rank(), memory),
      gradients(part.problem.kv, part.placement, part.comm.rank(), memory);
  KvParcel<float> host = part.kv();
  cuda::upload<float>(kv.k(), host.k(), stream);
  cuda::upload<float>(kv.v(), host.v(), stream);
  Engine engine(part.problem.scoring, {.stream = stream});
  engine.begin({q, out, lse, grad_out}, part.ranges);
  loop(engine, kv, gradients);
  return {cuda::downloaded(engine.finish(), stream), cuda::downloaded<float>(gradients.k(), stream),
          cuda::downloaded<float>(gradients.v(), stream)};
}

int nccl_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "08", "ring_backward_nccl",
      "The backward's ring between GPUs: K,V on their way, dK,dV one beat behind, and a GPU that computes.",
      &comm);
  Index seq = 509, heads = 4, kv_heads = 2, dim = 32;
  bool share = false;
  lesson.options().option("--seq", seq, "Tokens S; any number, also fewer than ranks");
  lesson.options().option("--heads", heads, "Query heads Hq");
  lesson.options().option("--kv-heads", kv_heads, "KV heads Hkv; must divide --heads");
  lesson.options().option("--dim", dim, "Head dim D", {1, 256});
  lesson.options().flag("--share-gpu", share, "More ranks than GPUs, to try it out: correctness only");
  lesson.offer_mutants({{"stay-local", "dK,dV never travel: each rank keeps what it computes"},
                        {"block-delta", "delta from the output over a rank's own keys"},
                        {"hop-too-few", "dK,dV make N - 1 hops, like K,V, and are not home"}});
  lesson.needs_gpu(gpu::why_none());
  if (!lesson.parse(argc, argv)) return 0;
  if (!lesson.has_gpu()) return lesson.skip();
  agree(comm, [&] {
    if (heads % kv_heads != 0) throw InputError("--kv-heads must divide --heads");
  });
  const bool shared = use_own_gpu(comm, share).anywhere();
  const cuda::Stream compute, transfer(cuda::Stream::Priority::high);
  NcclWorld world(comm, {.share_gpu = shared});
  const gpu::NcclRanks ranks(comm);
  const Ring ring{comm.rank(), comm.size()};
  const Variant variant = lesson.mutant("stay-local")    ? Variant::stay_local
                          : lesson.mutant("block-delta") ? Variant::block_delta
                          : lesson.mutant("hop-too-few") ? Variant::hop_too_few
                                                         : Variant::right;
  const Part part(comm, {{1, heads, seq, dim}, {1, kv_heads, seq, dim}, {default_scale(dim)}, lesson.seed()});

  lesson.heading("The agreement");
  Cost cost;
  const Gradients<float> got =
      gradients_of(part, variant, compute, [&](Engine& engine, Parcel& kv, Parcel& gradients) {
        cost = nccl_backward(engine, kv, gradients, ring, ranks.handle(), compute, transfer,
                             gradient_hops(variant, comm.size()));
      });
  const Gradients<float> library =
      gradients_of(part, Variant::right, compute, [&](Engine& engine, Parcel& kv, Parcel& gradients) {
        NcclTransport kv_transport(world, compute.handle()), gradient_transport(world, compute.handle());
        ring_backward(engine, kv_transport, gradient_transport, kv, gradients);
      });
  lesson.check(
      "bit for bit the library's ring backward over NcclTransport",
      bitwise_equal(got.q, library.q) && bitwise_equal(got.k, library.k) && bitwise_equal(got.v, library.v));
  lesson.check("dQ agrees with the dense reference in double", compare_q(part, got));
  lesson.check("dK agrees with the dense reference in double", compare_k(part, got));
  lesson.check("dV agrees with the dense reference in double", compare_v(part, got));

  lesson.heading("The cost");
  lesson.say("  rank 0 on " + cuda::name_of(cuda::current_device()) +
             (shared ? ": ranks share a GPU: correctness only, times mean nothing" : ""));
  lesson.check(
      "hops are N - 1 of K,V and N of dK,dV (0 when N = 1), and bytes as derived", cost_is_right(part, cost),
      format("%lld and %lld hops from rank %d", cost[0].hops + 0LL, cost[1].hops + 0LL, comm.rank()));
  const double kv_exposed = max_over_ranks(comm, cost[0].exposed_seconds);
  const double gradients_exposed = max_over_ranks(comm, cost[1].exposed_seconds);
  lesson.say("  the compute stream waited " + human_seconds(kv_exposed) + " for K,V and " +
             human_seconds(gradients_exposed) + " for dK,dV (slowest rank)");
  lesson.record("shared_gpu", Index{shared ? 1 : 0});
  lesson.record("hops", std::vector<Index>{cost[0].hops, cost[1].hops});
  lesson.record("bytes_sent",
                std::vector<Index>{sum_over_ranks(comm, cost[0].bytes), sum_over_ranks(comm, cost[1].bytes)});
  lesson.record("exposed_seconds", std::vector<double>{kv_exposed, gradients_exposed});
  return lesson.finish(counted(comm.size(), "rank") + ": dK,dV are home after " +
                       counted(gradient_hops(Variant::right, comm.size()), "hop") + ", exact");
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return nccl_lesson(argc, argv, comm); });
}
