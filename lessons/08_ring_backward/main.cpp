// Lesson 08: the ring backward. The idea is in ring.hpp; this program shows which tests pass for wrong rings, compares
// the result with the library's and the reference's, and says what it costs.
#include LESSON_IDEA

#include "common/noting_engine.hpp"
#include "part.hpp"
#include "ring_attention/core/allocation.hpp"
#include "weaker_tests.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_08;

/// The backward of one part, right or wrong.
Result backward(const RankShare& part, const RingMistake& mistake) {
  const int rank = part.comm.rank();
  CpuBackward<float> engine(part.problem.scoring);
  NotedSteps notes;
  NotingBackward noting(engine, notes);
  engine.begin(part.result(mistake), part.ranges);
  const Index before = allocation::current();
  allocation::reset_peak();
  RingBuffers own(part.problem, part.placement, rank);
  lesson::Parcel kv{std::move(own.current), std::move(own.incoming), 0};
  lesson::Parcel gradients{Tensor<float>(kv.current.shape()), Tensor<float>(kv.incoming.shape()), 1};
  barrier(part.comm);
  mpi_counter::reset();
  const double begin = MPI_Wtime();
  lesson::ring(noting, kv, gradients, part.problem.kv, part.placement, part.comm,
               gradient_hops(mistake, part.ring()));
  const double seconds = MPI_Wtime() - begin;
  const Index held = allocation::peak() - before;

  const Shape shard = part.problem.kv.with_seq(part.placement.tokens(rank));
  const View<const float> k(gradients.current.data(), shard),
      v(gradients.current.data() + shard.size(), shard);
  return {{engine.finish(), converted<float>(k), converted<float>(v)},
          {mpi_counter::traffic(kv.tag), mpi_counter::traffic(gradients.tag)},
          held,
          seconds};
}

/// The same with the library's loop and transport.
Gradients<float> library_backward(const RankShare& part) {
  CpuBackward<float> engine(part.problem.scoring);
  engine.begin(part.result(), part.ranges);
  KvParcel<float> kv = part.kv(), gradients = part.zero_gradients();
  OverlappedTransport kv_transport(part.comm, 0), gradient_transport(part.comm, 1);
  ring_backward(engine, kv_transport, gradient_transport, kv, gradients);
  return {engine.finish(), converted<float>(View<const float>(gradients.k())),
          converted<float>(View<const float>(gradients.v()))};
}

void show_cost(Lesson& lesson, const RankShare& part, const Result& got) {
  const auto& [kv, gradients] = got.cost;
  lesson.heading("The cost");
  lesson.check(
      "hops are N - 1 of K,V and N of dK,dV (0 when N = 1), bytes as derived", cost_is_right(part, got.cost),
      format("%lld and %lld hops", static_cast<long long>(kv.hops), static_cast<long long>(gradients.hops)));
  const Shape shard = part.problem.kv.with_seq(part.placement.max_tokens());
  const Index shards = part.comm.size() > 1 ? 4 + 6 : 2 + 4;
  lesson.check("buffers take four KV shards and six of gradients (2 and 4 when N = 1)",
               got.parcel_bytes == shards * shard.size() * static_cast<Index>(sizeof(float)),
               human_bytes(got.parcel_bytes));
  Table table({"messages of", "hops", "sent by all ranks", "exposed, slowest rank"});
  for (const auto& [name, traffic] : {std::pair("K,V", &kv), std::pair("dK,dV", &gradients)})
    table.row({name, std::to_string(traffic->hops), human_bytes(sum_over_ranks(part.comm, traffic->bytes)),
               human_seconds(max_over_ranks(part.comm, traffic->exposed_seconds))});
  lesson.print("cost", table);
  lesson.say("  The whole loop: " + human_seconds(max_over_ranks(part.comm, got.seconds)));
}

int ring_backward_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "08", "ring_backward",
      "K,V travel around the ring again. The gradients of a shard follow it, one step behind: each rank\n"
      "adds what its queries contribute, and after N hops the complete dK,dV are back at the owner.",
      &comm);
  ProblemFlags flags{.seq = 509, .heads = 4, .kv_heads = 2, .dim = 32};
  flags.offer(lesson);
  lesson.offer_mistakes(mutants);
  lesson.offer_save();
  if (!lesson.parse(argc, argv)) return 0;
  const RandomProblem problem = flags.problem(lesson);

  lesson.heading("The failure: rings that look right");
  WeakerTests weaker(comm, lesson.seed(), backward);
  weaker.show_errors(lesson);
  lesson.heading("Tests that pass for the wrong rings");
  weaker.show_tests(lesson);

  lesson.heading("The agreement");
  const RankShare part(comm, problem);
  const Result got = backward(part, ring_mistake(lesson.mistake_of(mutants)));
  lesson.check("bit for bit the library's ring backward", same_bits(got.gradients, library_backward(part)));
  check_gradients(lesson, part, got.gradients);
  SavedCases(lesson.save_folder(), {part.placement.kind(), comm.size(), comm.rank()})
      .add<float>("full", problem, part.ranges,
                  {{"out", part.forward.out},
                   {"lse", part.forward.lse},
                   {"dq", got.gradients.q},
                   {"dk", got.gradients.k},
                   {"dv", got.gradients.v}});
  show_cost(lesson, part, got);
  return lesson.finish(counted(comm.size(), "rank") + ", " + counted(problem.kv.seq, "token") +
                       ": exact dK,dV after " + counted(part.ring().gradient_hops(), "hop"));
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv,
                  [&](const Communicator& comm) { return ring_backward_lesson(argc, argv, comm); });
}
