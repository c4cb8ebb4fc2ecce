// Lesson 06 between GPUs. Beside the lesson's loop only this differs: start, compute and finish are enqueued, on two
// streams, and events say what comes after what. The host waits once, at the end.
#include "cli/random_problem.hpp"
#include "common/lesson.hpp"
#include "common/nccl.hpp"
#include "ring_attention/cuda/engine.hpp"
#include "ring_attention/ring/forward.hpp"

using namespace ring_attention;

namespace {

using Engine = CudaEngine<float>;
using Parcel = KvParcel<float, cuda::DeviceMemory>;

struct Cost {
  Index hops = 0;
  Index bytes = 0;  // sent by this rank
  double exposed_seconds = 0;
  std::vector<Index> owners;  // whose K,V this rank held at each step
};

// ---- The idea ------------------------------------------------------------------------------------------
// At step t rank r holds the K,V of rank (r - t) mod N. They travel on while the GPU merges them.
Cost nccl_ring(Engine& engine, auto& kv, const Ring& ring, ncclComm_t comm, const cuda::Stream& compute,
               const cuda::Stream& transfer, int steps) {
  Cost cost;
  std::vector<gpu::Hop> hops;
  for (int step = 0; step < steps; ++step) {
    const bool last = step + 1 == steps;
    if (!last) {
      const auto [outgoing, incoming] = kv.exchange(ring.owner(step + 1));
      hops.emplace_back();
      hops.back().ready.record(
          compute.handle());  // the transfer begins when all before it has been computed:
      hops.back().ready.block(transfer.handle());  // until then the incoming buffer is read
      gpu::check(ncclGroupStart());                // both at once: a send alone may wait for its receiver
      if (!outgoing.empty())
        gpu::check(
            ncclSend(outgoing.data(), outgoing.size(), ncclUint8, ring.next(), comm, transfer.handle()));
      if (!incoming.empty())
        gpu::check(
            ncclRecv(incoming.data(), incoming.size(), ncclUint8, ring.prev(), comm, transfer.handle()));
      gpu::check(ncclGroupEnd());
      hops.back().arrived.record(transfer.handle());
      cost.bytes += static_cast<Index>(outgoing.size());
    }

    engine.accumulate(kv.current());  // enqueued: the host goes on
    cost.owners.push_back(kv.owner());
    if (last) break;

    hops.back().idle.record(compute.handle());
    hops.back().arrived.block(compute.handle());  // the next step begins when its K,V are there
    hops.back().resumed.record(compute.handle());
    ++cost.hops;
    kv.advance();
  }
  transfer.synchronize();
  compute.synchronize();
  cost.exposed_seconds = gpu::exposed_seconds(hops);
  return cost;
}
// --------------------------------------------------------------------------------------------------------

// The mutant: what is still arriving becomes current at once.
struct EarlyParcel : Parcel {
  Exchange exchange(int incoming_owner) {
    const Exchange hop = Parcel::exchange(incoming_owner);
    Parcel::advance();
    return hop;
  }
  void advance() {}
};

// This rank's part of a problem, in its GPU's memory.
struct Part {
  Part(const RandomProblem& problem, const Placement& placement, int rank, const cuda::Stream& compute)
      : p(problem),
        ranges(placement.ranges(rank)),
        q(cuda::uploaded<float>(p.queries<float>(ranges), compute.handle())),
        kv(p.kv, placement, rank, cuda::DeviceMemory{compute.handle()}) {
    KvParcel<float> host = p.parcel<float>(placement, rank);
    cuda::upload<float>(kv.k(), host.k(), compute.handle());
    cuda::upload<float>(kv.v(), host.v(), compute.handle());
  }
  RandomProblem p;
  TokenRanges ranges;
  cuda::DeviceTensor<float> q;
  Parcel kv;
};

// Runs `loop(engine, kv)` on a fresh part; what it left on the GPU comes back.
AttentionResult<float> attended(const RandomProblem& problem, const Placement& placement, int rank,
                                const cuda::Stream& compute, const auto& loop) {
  Part part(problem, placement, rank, compute);
  Engine engine(problem.scoring, {.stream = compute.handle()});
  engine.begin(part.q, part.ranges);
  loop(engine, part.kv);
  const DeviceAttentionResult there = engine.finish();
  return {cuda::downloaded(there.out, compute.handle()), cuda::downloaded(there.lse, compute.handle())};
}

int nccl_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson("06", "overlapped_ring_nccl",
                "The ring of lesson 06 between GPUs: K,V travel on one stream while another one computes, "
                "and the host\n"
                "waits once, at the end.",
                &comm);
  Index seq = 509, heads = 4, kv_heads = 2, dim = 64;
  bool share = false;
  lesson.options().option("--seq", seq, "Tokens S; any number, also fewer than ranks");
  lesson.options().option("--heads", heads, "Query heads Hq");
  lesson.options().option("--kv-heads", kv_heads, "KV heads Hkv; must divide --heads");
  lesson.options().option("--dim", dim, "Head dim D", {1, 256});
  lesson.options().flag("--share-gpu", share, "More ranks than GPUs, to try it out: correctness only");
  lesson.offer_mutants({{"early-advance", "compute with the parcel that is still arriving"},
                        {"step-too-few", "N - 1 steps, as the paper's algorithm 1 is printed"}});
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
  const RandomProblem problem{
      {1, heads, seq, dim}, {1, kv_heads, seq, dim}, {default_scale(dim), Mask::causal()}, lesson.seed()};
  const Placement placement(PlacementKind::zigzag, seq, comm.size());
  const int steps = lesson.mutant("step-too-few") ? comm.size() - 1 : comm.size();

  lesson.heading("The ring, spelled out");
  Cost cost;
  const auto here = [&](Engine& engine, Parcel& kv) {
    if (lesson.mutant("early-advance")) {
      EarlyParcel early{std::move(kv)};
      cost = nccl_ring(engine, early, ring, ranks.handle(), compute, transfer, steps);
    } else {
      cost = nccl_ring(engine, kv, ring, ranks.handle(), compute, transfer, steps);
    }
  };
  const AttentionResult<float> got = attended(problem, placement, comm.rank(), compute, here);
  lesson.say("  rank 0 on " + cuda::name_of(cuda::current_device()) + ": " + counted(steps, "step") + ", " +
             counted(cost.hops, "hop") + ", " + human_bytes(cost.bytes) + " sent");
  if (shared) lesson.say("  ranks share a GPU: correctness only, times mean nothing");
  lesson.record("shared_gpu", Index{shared ? 1 : 0});

  lesson.heading("The agreement");
  bool in_turn = static_cast<int>(cost.owners.size()) == ring.steps();
  for (std::size_t step = 0; step < cost.owners.size(); ++step)
    in_turn = in_turn && cost.owners[step] == ring.owner(static_cast<int>(step));
  lesson.check("at step t rank r computes with the K,V of rank (r - t) mod N", in_turn);
  const AttentionResult<float> library =
      attended(problem, placement, comm.rank(), compute, [&](Engine& engine, Parcel& kv) {
        NcclTransport transport(world, compute.handle());
        ring_forward(engine, transport, kv);
      });
  lesson.check("bit for bit the library's NcclTransport",
               bitwise_equal(got.out, library.out) && bitwise_equal(got.lse, library.lse));
  const Reference want = problem.reference<float>(placement.ranges(comm.rank()));
  const Tolerance tolerance = problem.tolerance<float>(want);
  lesson.check("out agrees with the dense reference in double", compare(got.out, want.out, tolerance));
  lesson.check("lse agrees with the dense reference in double", compare(got.lse, want.lse, tolerance));

  lesson.heading("The cost");
  const Index next_tokens = placement.tokens(ring.next());
  const Index expected = comm.size() == 1 ? 0
                                          : 2 * problem.kv.with_seq(seq - next_tokens).size() *
                                                static_cast<Index>(sizeof(float));
  lesson.check("hops are N - 1, and bytes those of lesson 05",
               cost.hops == comm.size() - 1 && cost.bytes == expected,
               format("%lld hops, %lld bytes from rank %d", cost.hops + 0LL, cost.bytes + 0LL, comm.rank()));
  const double exposed = max_over_ranks(comm, cost.exposed_seconds);
  lesson.say("  the compute stream waited " + human_seconds(exposed) + " (slowest rank)");
  lesson.record("hops", cost.hops);
  lesson.record("bytes_sent", sum_over_ranks(comm, cost.bytes));
  lesson.record("exposed_seconds", exposed);
  return lesson.finish(counted(comm.size(), "rank") +
                       ": K,V travel while the GPU computes; the host waits once");
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return nccl_lesson(argc, argv, comm); });
}
