// Lesson 08: the ring backward. The idea is ring_backward_by_hand() below: K,V go round once more, and the
// gradients of a shard travel with it, one beat behind, until they are home.
#include <thread>

#include "ring_attention/ring/backward.hpp"
#include "weaker_tests.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_08;

namespace {

// ---- The idea ------------------------------------------------------------------------------------------
// At step t rank r holds the K,V of rank (r - t) mod N, and adds what its queries contribute to their dK,dV.
// K,V make N - 1 hops. dK,dV leave a rank once it has added its part, one beat behind, and make `gradient_hops`:
// N, or none when N = 1. The last one brings them home.
Cost ring_backward_by_hand(CpuBackward& engine, KvParcel<float>& kv_parcel, KvParcel<float>& gradient_parcel,
                           const Communicator& comm, int gradient_hops) {
  const Ring ring{comm.rank(), comm.size()};
  Channel kv{0, kv_parcel}, gradients{1, gradient_parcel};
  const auto start = [&](Channel& c, int step) {  // lesson 06: the receive first, then the send
    const auto [out, in] = c.parcel.exchange(ring.owner(step + 1));
    const auto length = [](const auto& bytes) { return static_cast<int>(bytes.size()); };
    check_mpi(MPI_Irecv(in.data(), length(in), MPI_BYTE, ring.prev(), c.tag, comm.handle(), &c.requests[0]));
    check_mpi(
        MPI_Isend(out.data(), length(out), MPI_BYTE, ring.next(), c.tag, comm.handle(), &c.requests[1]));
    c.traffic = {c.traffic.hops + 1, c.traffic.bytes + length(out), c.traffic.exposed_seconds};
  };
  const auto arrived = [](Channel& c) {
    int done = 0;
    check_mpi(MPI_Testall(2, c.requests.data(), &done, MPI_STATUSES_IGNORE));
    return done != 0;
  };
  const auto finish = [&](Channel& c) {
    const double begin = MPI_Wtime();
    while (!arrived(c))
      std::this_thread::yield();  // to a rank that shares the core, and may be the one awaited
    c.traffic.exposed_seconds += MPI_Wtime() - begin;
    c.parcel.advance();
  };
  const auto progress = [&] { (void)(arrived(kv) && arrived(gradients)); };  // MPI moves while it is called

  KvBuffer<float>& added = gradient_parcel.spare_buffer();  // by one step, on this rank
  for (int step = 0; step < ring.steps(); ++step) {
    const bool last = step + 1 == ring.steps();
    const int owner = kv_parcel.owner();
    if (!last) start(kv, step);

    std::ranges::fill(added.elements(owner), 0.0F);
    engine.accumulate(kv_parcel.current(), {added.k(owner), added.v(owner)}, progress);  // dQ stays

    if (0 < step && step <= gradient_hops) finish(gradients);  // the dK,dV of these K,V, from the rank before
    std::ranges::transform(gradient_parcel.elements(), added.elements(owner),
                           gradient_parcel.elements().begin(), std::plus<>());
    if (step < gradient_hops) start(gradients, step);
    if (!last) finish(kv);
  }
  if (gradient_hops == ring.steps()) finish(gradients);  // home, with what all N ranks added
  return {kv.traffic, gradients.traffic};
}
// --------------------------------------------------------------------------------------------------------

/// N hops bring dK,dV home. A ring of one has nowhere to send them.
int gradient_hops(Variant variant, int ranks) {
  if (ranks == 1 || variant == Variant::stay_local) return 0;
  return variant == Variant::hop_too_few ? ranks - 1 : ranks;
}

/// What a rank ends with.
Gradients<float> taken(CpuBackward& engine, KvParcel<float>& gradients) {
  return {engine.finish(), converted<float>(View<const float>(gradients.k())),
          converted<float>(View<const float>(gradients.v()))};
}

/// The backward of one part, right or wrong.
Outcome backward(const Part& part, Variant variant) {
  CpuBackward engine(part.problem.scoring);
  engine.begin(part.result(variant), part.ranges);
  const Index before = allocation::current();
  allocation::reset_peak();
  KvParcel<float> kv = part.kv(), gradients = part.no_gradients();
  barrier(part.comm);
  const double begin = MPI_Wtime();
  const Cost cost =
      ring_backward_by_hand(engine, kv, gradients, part.comm, gradient_hops(variant, part.comm.size()));
  const double seconds = MPI_Wtime() - begin;
  const Index held = allocation::peak() - before;
  return {taken(engine, gradients), cost, held, seconds};
}

/// The same with the library's loop and transport.
Gradients<float> library_backward(const Part& part) {
  CpuBackward engine(part.problem.scoring);
  engine.begin(part.result(Variant::right), part.ranges);
  KvParcel<float> kv = part.kv(), gradients = part.no_gradients();
  OverlappedTransport kv_transport(part.comm, 0), gradient_transport(part.comm, 1);
  ring_backward(engine, kv_transport, gradient_transport, kv, gradients);
  return taken(engine, gradients);
}

void show_agreement(Lesson& lesson, const Part& part, const Gradients<float>& got) {
  const Gradients<float> library = library_backward(part);
  lesson.check("bit for bit the library's ring backward", bitwise_equal(got.q, library.q) &&
                                                              bitwise_equal(got.k, library.k) &&
                                                              bitwise_equal(got.v, library.v));
  lesson.check("dQ agrees with the dense reference in double", compare_q(part, got));
  lesson.check("dK agrees with the dense reference in double", compare_k(part, got));
  lesson.check("dV agrees with the dense reference in double", compare_v(part, got));
}

void show_cost(Lesson& lesson, const Part& part, const Outcome& got) {
  const auto& [kv, gradients] = got.cost;
  const auto number = [](Index n) { return static_cast<long long>(n); };
  lesson.heading("The cost");
  lesson.check("hops are N - 1 of K,V and N of dK,dV (0 when N = 1), and bytes as derived",
               cost_is_right(part, got.cost),
               format("%lld and %lld hops; %lld and %lld bytes from rank %d", number(kv.hops),
                      number(gradients.hops), number(kv.bytes), number(gradients.bytes), part.comm.rank()));
  const Shape shard = part.problem.kv.with_seq(part.placement.max_tokens());
  const Index shards = part.comm.size() > 1 ? 4 + 6 : 2 + 4;
  lesson.check("parcels take four KV shards and six of gradients (2 and 4 when N = 1)",
               got.parcel_bytes == shards * shard.size() * static_cast<Index>(sizeof(float)),
               human_bytes(got.parcel_bytes));
  const Index kv_sent = sum_over_ranks(part.comm, kv.bytes);
  const Index gradients_sent = sum_over_ranks(part.comm, gradients.bytes);
  const double kv_exposed = max_over_ranks(part.comm, kv.exposed_seconds);
  const double gradients_exposed = max_over_ranks(part.comm, gradients.exposed_seconds);
  const double seconds = max_over_ranks(part.comm, got.seconds);
  lesson.say(format(
      "  sent by all ranks: %s of K,V, %s of dK,dV; exposed %s and %s of %s in all (slowest rank)",
      human_bytes(kv_sent).c_str(), human_bytes(gradients_sent).c_str(), human_seconds(kv_exposed).c_str(),
      human_seconds(gradients_exposed).c_str(), human_seconds(seconds).c_str()));
  lesson.record("hops", std::vector<Index>{kv.hops, gradients.hops});
  lesson.record("bytes_sent", std::vector<Index>{kv_sent, gradients_sent});
  lesson.record("exposed_seconds", std::vector<double>{kv_exposed, gradients_exposed});
  lesson.record("parcel_bytes", got.parcel_bytes);
  lesson.record("total_seconds", seconds);
}

int ring_backward_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "08", "ring_backward",
      "K,V go round once more. The gradients of a shard follow it, one beat behind: each rank adds what\n"
      "its queries contribute, and after N hops dK,dV are home, complete.",
      &comm);
  Index seq = 509, heads = 4, kv_heads = 2, dim = 32;
  lesson.options().option("--seq", seq, "Tokens S; any number, also fewer than ranks");
  lesson.options().option("--heads", heads, "Query heads Hq");
  lesson.options().option("--kv-heads", kv_heads, "KV heads Hkv; must divide --heads");
  lesson.options().option("--dim", dim, "Head dim D");
  lesson.offer_mutants({{"stay-local", "dK,dV never travel: each rank keeps what it computes"},
                        {"block-delta", "delta from the output over a rank's own keys"},
                        {"hop-too-few", "dK,dV make N - 1 hops, like K,V, and are not home"}});
  if (!lesson.parse(argc, argv)) return 0;
  agree(comm, [&] {
    if (heads % kv_heads != 0) throw InputError("--kv-heads must divide --heads");
  });

  lesson.heading("The failure: rings that look right");
  WeakerTests weaker(comm, lesson.seed(), backward);
  weaker.show_errors(lesson);
  lesson.heading("The tests that believe them");
  weaker.show_tests(lesson);

  lesson.heading("The agreement");
  const Part part(comm, {{1, heads, seq, dim}, {1, kv_heads, seq, dim}, {default_scale(dim)}, lesson.seed()});
  const Variant variant = lesson.mutant("stay-local")    ? Variant::stay_local
                          : lesson.mutant("block-delta") ? Variant::block_delta
                          : lesson.mutant("hop-too-few") ? Variant::hop_too_few
                                                         : Variant::right;
  const Outcome got = backward(part, variant);
  show_agreement(lesson, part, got.gradients);
  show_cost(lesson, part, got);
  return lesson.finish(counted(comm.size(), "rank") + ", " + counted(seq, "token") +
                       ": dK,dV are home after " +
                       counted(gradient_hops(Variant::right, comm.size()), "hop") + ", exact");
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv,
                  [&](const Communicator& comm) { return ring_backward_lesson(argc, argv, comm); });
}
