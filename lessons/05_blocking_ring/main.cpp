// Lesson 05: the blocking ring. The one new idea is blocking_ring() below: K,V rotate, queries stay.
#include "cli/random_problem.hpp"
#include "common/lesson.hpp"
#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"

using namespace ring_attention;

namespace {

struct Cost {
  Index hops = 0;
  Index bytes = 0;  // sent by this rank
  double exposed_seconds = 0;
  std::vector<Index> owners;  // whose K,V this rank held at each step
};

// ---- The idea ------------------------------------------------------------------------------------------
// At step t rank r holds the K,V of rank (r - t) mod N. It merges them, then passes them on: N steps, N-1 hops.
Cost blocking_ring(CpuEngine& engine, KvParcel<float>& kv, const Communicator& comm, int steps) {
  const Ring ring{comm.rank(), comm.size()};
  Cost cost;
  for (int step = 0; step < steps; ++step) {
    engine.accumulate(kv.current());
    cost.owners.push_back(kv.owner());
    if (step + 1 == steps) break;  // the last parcel has been used: it need not travel on

    const double begin = MPI_Wtime();
    const auto [outgoing, incoming] = kv.exchange(ring.owner(step + 1));
    const auto length = [](const auto& bytes) { return static_cast<int>(bytes.size()); };
    if (ring.rank % 2 == 0) {  // if all sent first, all could wait for a receive that nobody has posted
      check_mpi(MPI_Send(outgoing.data(), length(outgoing), MPI_BYTE, ring.next(), 0, comm.handle()));
      check_mpi(MPI_Recv(incoming.data(), length(incoming), MPI_BYTE, ring.prev(), 0, comm.handle(),
                         MPI_STATUS_IGNORE));
    } else {
      check_mpi(MPI_Recv(incoming.data(), length(incoming), MPI_BYTE, ring.prev(), 0, comm.handle(),
                         MPI_STATUS_IGNORE));
      check_mpi(MPI_Send(outgoing.data(), length(outgoing), MPI_BYTE, ring.next(), 0, comm.handle()));
    }
    check_mpi(MPI_Barrier(comm.handle()));
    cost.exposed_seconds += MPI_Wtime() - begin;  // this rank computed nothing meanwhile

    ++cost.hops;
    cost.bytes += static_cast<Index>(outgoing.size());
    kv.advance();
  }
  return cost;
}
// --------------------------------------------------------------------------------------------------------

void show_owners(Lesson& lesson, const Communicator& comm, const std::vector<Index>& owners) {
  const auto steps = owners.size();
  std::vector<Index> all(steps * static_cast<std::size_t>(comm.size()));
  const auto count = static_cast<int>(steps);
  check_mpi(MPI_Gather(owners.data(), count, MPI_INT64_T, all.data(), count, MPI_INT64_T, 0, comm.handle()));
  std::vector<std::vector<Index>> rows;
  for (std::size_t rank = 0; rank * steps < all.size(); ++rank) {
    rows.emplace_back(all.begin() + static_cast<Index>(rank * steps),
                      all.begin() + static_cast<Index>((rank + 1) * steps));
    for (std::size_t step = 0; step < steps; ++step)
      lesson.say(format("  rank %zu, step %zu: holds K,V of rank %d", rank, step,
                        static_cast<int>(rows[rank][step])));
  }
  lesson.record("owners", rows);
}

// The failure that motivates the ring: without messages a rank attends to its own keys only.
void show_failure(Lesson& lesson, const Communicator& comm, const RandomProblem& problem,
                  const Placement& placement, const Tensor<float>& q, const Reference& want) {
  KvParcel<float> own = problem.parcel<float>(placement, comm.rank());
  CpuEngine engine(problem.scoring);
  engine.begin(q, placement.ranges(comm.rank()));
  engine.accumulate(own.current());
  const Comparison alone = compare(engine.finish().out, want.out, {});
  const double relative = max_over_ranks(comm, alone.relative_error);
  lesson.say(format("  attending to its own shard alone, a rank is wrong by %.0f %% (relative error of out)",
                    100 * relative));
  lesson.record("relative_error_alone", relative);
}

// What the ring cost, beside what one device would have to hold.
void show_cost(Lesson& lesson, const Communicator& comm, const RandomProblem& problem,
               const Placement& placement, const Cost& cost, double seconds) {
  const Index element = sizeof(float);
  const Index next_tokens = placement.tokens(Ring{comm.rank(), comm.size()}.next());
  const Index expected = 2 * problem.kv.with_seq(problem.kv.seq - next_tokens).size() * element;
  lesson.heading("The cost");
  lesson.check("hops are N - 1", cost.hops == comm.size() - 1, format("%d", static_cast<int>(cost.hops)));
  lesson.check("bytes sent are 2 B Hkv D e (S - c of the next rank)",
               comm.size() == 1 || cost.bytes == expected,
               format("%lld bytes from rank %d", static_cast<long long>(cost.bytes), comm.rank()));
  const Index all = 2 * problem.kv.size() * element;
  const Index held =
      comm.size() == 1 ? all : 4 * problem.kv.with_seq(placement.max_tokens()).size() * element;
  lesson.say(format("  K,V of the whole sequence: %s; held by a rank (current and incoming): %s",
                    human_bytes(all).c_str(), human_bytes(held).c_str()));
  const double exposed = max_over_ranks(comm, cost.exposed_seconds);
  const Index sent = sum_over_ranks(comm, cost.bytes);
  lesson.say(format("  sent by all ranks: %s; exposed communication %s of %s in all (slowest rank)",
                    human_bytes(sent).c_str(), human_seconds(exposed).c_str(),
                    human_seconds(seconds).c_str()));
  lesson.record("kv_bytes_whole", all);
  lesson.record("kv_bytes_held", held);
  lesson.record("bytes_sent", sent);
  lesson.record("hops", cost.hops);
  lesson.record("exposed_seconds", exposed);
  lesson.record("total_seconds", seconds);
}

int blocking_ring_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "05", "blocking_ring",
      "Each rank keeps its queries; K,V go round a ring of blocking messages. After N steps every query\n"
      "has met every key, and no rank held more than two shards of K,V at a time.",
      &comm);
  Index seq = 509, heads = 4, kv_heads = 2, dim = 32;
  lesson.options().option("--seq", seq, "Tokens S; any number, also fewer than ranks");
  lesson.options().option("--heads", heads, "Query heads Hq");
  lesson.options().option("--kv-heads", kv_heads, "KV heads Hkv; must divide --heads");
  lesson.options().option("--dim", dim, "Head dim D");
  lesson.offer_mutants({{"step-too-few", "N - 1 steps, as the paper's algorithm 1 is printed"}});
  if (!lesson.parse(argc, argv)) return 0;
  agree(comm, [&] {
    if (heads % kv_heads != 0) throw InputError("--kv-heads must divide --heads");
  });
  const RandomProblem problem{
      {1, heads, seq, dim}, {1, kv_heads, seq, dim}, {default_scale(dim)}, lesson.seed()};
  const Placement placement(PlacementKind::contiguous, seq, comm.size());
  const TokenRanges ranges = placement.ranges(comm.rank());
  const auto q = problem.queries<float>(ranges);
  const Reference want = problem.reference<float>(ranges);

  lesson.heading("The failure: a rank that only sees its own K,V");
  show_failure(lesson, comm, problem, placement, q, want);

  lesson.heading("The ring, spelled out");
  CpuEngine engine(problem.scoring);
  engine.begin(q, ranges);
  KvParcel<float> kv = problem.parcel<float>(placement, comm.rank());
  check_mpi(MPI_Barrier(comm.handle()));
  const double begin = MPI_Wtime();
  const Cost cost =
      blocking_ring(engine, kv, comm, lesson.mutant("step-too-few") ? comm.size() - 1 : comm.size());
  const double seconds = max_over_ranks(comm, MPI_Wtime() - begin);
  const AttentionResult<float> got = engine.finish();
  show_owners(lesson, comm, cost.owners);

  lesson.heading("The agreement");
  const auto library = [&] {
    OddEvenTransport transport(comm);
    KvParcel<float> parcel = problem.parcel<float>(placement, comm.rank());
    engine.begin(q, ranges);
    ring_forward(engine, transport, parcel);
    return engine.finish();
  }();
  lesson.check("bit for bit the library's ring",
               bitwise_equal(got.out, library.out) && bitwise_equal(got.lse, library.lse));
  const Tolerance tolerance = problem.tolerance<float>(want);
  lesson.check("out agrees with the dense reference in double", compare(got.out, want.out, tolerance));
  lesson.check("lse agrees with the dense reference in double", compare(got.lse, want.lse, tolerance));

  show_cost(lesson, comm, problem, placement, cost, seconds);
  return lesson.finish(format("%d ranks, %d tokens: exact attention, K,V passed on in N - 1 = %d hops",
                              comm.size(), static_cast<int>(seq), comm.size() - 1));
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv,
                  [&](const Communicator& comm) { return blocking_ring_lesson(argc, argv, comm); });
}
