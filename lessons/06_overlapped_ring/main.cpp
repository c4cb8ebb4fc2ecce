// Lesson 06: the overlapped ring. Beside lesson 05's loop only the exchange differs: it starts before the compute
// and is finished after it.
#include <unistd.h>

#include "common/lesson.hpp"
#include "rings.hpp"
#include "wires.hpp"

using namespace ring_attention;

namespace {

struct Cost {
  Index hops = 0;
  Index bytes = 0;  // sent by this rank
  double exposed_seconds = 0;
  std::vector<Index> owners;  // whose K,V this rank held at each step
};

// ---- The idea ------------------------------------------------------------------------------------------
// At step t rank r holds the K,V of rank (r - t) mod N. They travel on while it merges them: sending and merging
// both only read them, and the next ones arrive in a buffer of their own. N steps, N-1 hops, as before.
Cost overlapped_ring(CpuEngine& engine, auto& kv, const Communicator& comm, int steps) {
  const Ring ring{comm.rank(), comm.size()};
  Cost cost;
  for (int step = 0; step < steps; ++step) {
    MPI_Request requests[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    if (step + 1 < steps) {  // the receive first: a message that finds it posted needs no copy on the way
      const auto [outgoing, incoming] = kv.exchange(ring.owner(step + 1));
      const auto length = [](const auto& bytes) { return static_cast<int>(bytes.size()); };
      check_mpi(MPI_Irecv(incoming.data(), length(incoming), MPI_BYTE, ring.prev(), 0, comm.handle(),
                          &requests[0]));
      check_mpi(MPI_Isend(outgoing.data(), length(outgoing), MPI_BYTE, ring.next(), 0, comm.handle(),
                          &requests[1]));
      cost.bytes += static_cast<Index>(outgoing.size());
    }

    int done = 0;
    const auto progress = [&] { check_mpi(MPI_Testall(2, requests, &done, MPI_STATUSES_IGNORE)); };
    engine.accumulate(kv.current(), progress);  // MPI moves messages inside its calls: one after every tile
    cost.owners.push_back(kv.owner());
    if (step + 1 == steps) break;  // the last parcel has been used: it need not travel on

    const double begin = MPI_Wtime();
    progress();
    while (done == 0) {
      usleep(20);  // a wait that spins takes the core from the rank it waits for
      progress();
    }
    cost.exposed_seconds += MPI_Wtime() - begin;  // this rank computed nothing meanwhile

    ++cost.hops;
    kv.advance();
  }
  return cost;
}
// --------------------------------------------------------------------------------------------------------

// The mutant: what is still arriving becomes current at once.
struct EarlyParcel : KvParcel<float> {
  Exchange exchange(int incoming_owner) {
    const Exchange hop = KvParcel::exchange(incoming_owner);
    KvParcel::advance();
    return hop;
  }
  void advance() {}
};

int overlapped_ring_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "06", "overlapped_ring",
      "The ring of lesson 05, but K,V travel while the rank computes with them: start, compute, finish.\n"
      "The result is the same bit for bit. What changes is how long a rank waits.",
      &comm);
  Index seq = 2048, heads = 4, kv_heads = 4, dim = 64;
  lesson.options().option("--seq", seq, "Tokens S; any number, also fewer than ranks");
  lesson.options().option("--heads", heads, "Query heads Hq");
  lesson.options().option("--kv-heads", kv_heads, "KV heads Hkv; must divide --heads");
  lesson.options().option("--dim", dim, "Head dim D");
  lesson.offer_mutants({{"early-advance", "compute with the parcel that is still arriving"},
                        {"step-too-few", "N - 1 steps, as the paper's algorithm 1 is printed"}});
  if (!lesson.parse(argc, argv)) return 0;
  agree(comm, [&] {
    if (heads % kv_heads != 0) throw InputError("--kv-heads must divide --heads");
  });
  const RandomProblem problem{
      {1, heads, seq, dim}, {1, kv_heads, seq, dim}, {default_scale(dim)}, lesson.seed()};
  const Placement placement(PlacementKind::contiguous, seq, comm.size());
  const TokenRanges ranges = placement.ranges(comm.rank());

  Cost cost;
  const int steps = lesson.mutant("step-too-few") ? comm.size() - 1 : comm.size();
  const RingLoop here = [&](CpuEngine& engine, KvParcel<float>& kv) {
    if (lesson.mutant("early-advance")) {
      EarlyParcel early{std::move(kv)};
      cost = overlapped_ring(engine, early, comm, steps);
    } else {
      cost = overlapped_ring(engine, kv, comm, steps);
    }
    return cost.exposed_seconds;
  };
  const RingLoop blocking = library_ring<OddEvenTransport>(comm);
  const std::vector<RingTiming> timings =
      time_in_turn(problem, comm, {blocking, library_ring<SilentTransport>(comm), here});

  lesson.heading("The failure: in lesson 05's ring nobody computes while K,V travel");
  lesson.say("  blocking: " + human_seconds(timings[0].exposed) + " of " + human_seconds(timings[0].total) +
             format(" exposed, that is %.1f %%", 100 * timings[0].share()));

  lesson.heading("The ring, spelled out");
  const AttentionResult<float> got = run_ring(problem, comm, here).result;
  lesson.say("  " + counted(steps, "step") + ", " + counted(cost.hops, "hop") + ", " +
             human_bytes(cost.bytes) +
             " sent by rank 0; each hop starts before a step's compute and is finished after it");

  lesson.heading("The agreement");
  const Ring ring{comm.rank(), comm.size()};
  bool in_turn = static_cast<int>(cost.owners.size()) == ring.steps();
  for (std::size_t step = 0; step < cost.owners.size(); ++step)
    in_turn = in_turn && cost.owners[step] == ring.owner(static_cast<int>(step));
  lesson.check("at step t rank r computes with the K,V of rank (r - t) mod N", in_turn);
  const auto same = [&](const RingLoop& loop) {
    const AttentionResult<float> other = run_ring(problem, comm, loop).result;
    return bitwise_equal(got.out, other.out) && bitwise_equal(got.lse, other.lse);
  };
  lesson.check("bit for bit the library's overlapped ring", same(library_ring<OverlappedTransport>(comm)));
  lesson.check("bit for bit the blocking ring of lesson 05", same(blocking));
  const Reference want = problem.reference<float>(ranges);
  const Tolerance tolerance = problem.tolerance<float>(want);
  lesson.check("out agrees with the dense reference in double", compare(got.out, want.out, tolerance));
  lesson.check("lse agrees with the dense reference in double", compare(got.lse, want.lse, tolerance));

  lesson.heading("The cost");
  const Index next_tokens = placement.tokens(ring.next());
  const Index expected =
      2 * problem.kv.with_seq(seq - next_tokens).size() * static_cast<Index>(sizeof(float));
  lesson.check("hops are N - 1", cost.hops == comm.size() - 1, format("%d", static_cast<int>(cost.hops)));
  lesson.check("bytes sent are those of lesson 05", comm.size() == 1 || cost.bytes == expected,
               format("%lld bytes from rank %d", static_cast<long long>(cost.bytes), comm.rank()));
  show_times(lesson, timings, comm);

  lesson.heading("When a hop hides");
  show_condition(lesson, comm, problem);

  lesson.heading("A simulated wire that is not the CPU");
  show_simulated_wire(lesson, comm, problem);
  return lesson.finish(counted(comm.size(), "rank") +
                       ": the bits of lesson 05; K,V travel while the rank computes");
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv,
                  [&](const Communicator& comm) { return overlapped_ring_lesson(argc, argv, comm); });
}
