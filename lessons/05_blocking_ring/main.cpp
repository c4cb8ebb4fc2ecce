// Lesson 05: the blocking ring. The idea is in ring.hpp; this program shows what fails without it, runs it, compares
// its result with the library's and the reference's, and says what it costs.
#include LESSON_IDEA

#include "common/noting_engine.hpp"
#include "common/problem.hpp"
#include "common/ring_mutants.hpp"
#include "mistakes/mistaken_ring.hpp"
#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"

using namespace ring_attention;

// The failure that motivates the ring: without messages a rank attends to its own keys only.
void show_failure(Lesson& lesson, const Communicator& comm, const RandomProblem& problem,
                  const Placement& placement, const Tensor<float>& q, const Reference& want) {
  KvParcel<float> own = problem.parcel<float>(placement, comm.rank());
  CpuEngine<float> engine(problem.scoring);
  engine.begin(q, placement.ranges(comm.rank()));
  engine.accumulate(own.current());
  const Comparison alone = compare(engine.finish().out, want.out, {});
  const double relative = max_over_ranks(comm, alone.relative_error);
  lesson.say(format("  attending to its own shard alone, a rank is wrong by %.0f %% (relative error of out)",
                    100 * relative));
}

// Whose K,V every rank held at each step.
void show_owners(Lesson& lesson, const Communicator& comm, const std::vector<Index>& owners) {
  std::vector<std::string> heading{"holds K,V of rank"};
  std::vector<std::vector<Index>> of_steps;
  for (const Index owner : owners) {
    heading.push_back(format("step %zu", of_steps.size()));
    of_steps.push_back(all_gather(comm, owner));
  }
  Table table(heading);
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(comm.size()); ++rank) {
    std::vector<std::string> cells{format("rank %zu", rank)};
    for (const auto& of_ranks : of_steps) cells.push_back(std::to_string(of_ranks[rank]));
    table.row(cells);
  }
  lesson.print("owners", table);
}

// What the ring cost, beside what one device would have to hold.
void show_cost(Lesson& lesson, const Communicator& comm, const RandomProblem& problem,
               const Placement& placement, const mpi_counter::Traffic& cost, double seconds) {
  lesson.heading("The cost");
  lesson.check("hops are N - 1", cost.hops == comm.size() - 1, format("%d", static_cast<int>(cost.hops)));
  lesson.check("bytes sent are 2 B Hkv D e (S - c of the next rank)",
               cost.bytes == forward_bytes(problem, placement, {comm.rank(), comm.size()}),
               format("%lld bytes from rank %d", static_cast<long long>(cost.bytes), comm.rank()));
  const Index all = parcel_bytes(problem, problem.kv.seq);
  const Index held = comm.size() == 1 ? all : 2 * parcel_bytes(problem, placement.max_tokens());
  Table table({"K,V of all tokens", "held by a rank", "sent by all ranks", "exposed", "of the whole loop"});
  table.row({human_bytes(all), human_bytes(held), human_bytes(sum_over_ranks(comm, cost.bytes)),
             human_seconds(max_over_ranks(comm, cost.exposed_seconds)), human_seconds(seconds)});
  lesson.print("cost", table);
  lesson.say("  A rank holds the current K,V and the incoming ones; times of the slowest rank.");
}

int blocking_ring_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "05", "blocking_ring",
      "Each rank keeps its queries; K,V travel around a ring with blocking messages. After N steps every\n"
      "query has met every key, and no rank held more than two shards of K,V at a time.",
      &comm);
  ProblemFlags flags{.seq = 509, .heads = 4, .kv_heads = 2, .dim = 32};
  flags.offer(lesson);
  const std::vector mutants{algorithm_1_as_printed};
  lesson.offer_mistakes(mutants);
  lesson.offer_save();
  if (!lesson.parse(argc, argv)) return 0;
  const RandomProblem problem = flags.problem(lesson);
  const Placement placement(PlacementKind::contiguous, problem.kv.seq, comm.size());
  const TokenRanges ranges = placement.ranges(comm.rank());
  const auto q = problem.queries<float>(ranges);
  const Reference want = problem.reference<float>(ranges);

  lesson.heading("The failure: a rank that only sees its own K,V");
  show_failure(lesson, comm, problem, placement, q, want);

  lesson.heading("The ring, spelled out");
  CpuEngine<float> engine(problem.scoring);
  NotedSteps notes;
  MistakenEngine<float> given(
      std::make_unique<NotingEngine>(engine, notes),
      {ring_mistake(lesson.mistake_of(mutants)), {comm.rank(), comm.size()}, placement}, problem.q.heads);
  engine.begin(q, ranges);
  RingBuffers kv(problem, placement, comm.rank());
  barrier(comm);
  mpi_counter::reset();
  const double begin = MPI_Wtime();
  lesson::ring(given, kv.current, kv.incoming, problem.kv, placement, comm);
  const double own_seconds = MPI_Wtime() - begin;
  const mpi_counter::Traffic cost = mpi_counter::traffic();
  const AttentionResult<float> got = engine.finish();
  show_owners(lesson, comm, owners_of(notes.steps(), problem, placement, {comm.rank(), comm.size()}));

  lesson.heading("The agreement");
  CpuEngine<float> library(problem.scoring);
  lesson.check("bit for bit the library's ring",
               same_bits(got, run_library_ring<OddEvenTransport>(problem, comm, placement, library).rows));
  check_reference(lesson, problem, want, got);
  SavedCases(lesson.save_folder(), {placement.kind(), comm.size(), comm.rank()})
      .add<float>("full", problem, ranges, {{"out", got.out}, {"lse", got.lse}});

  show_cost(lesson, comm, problem, placement, cost, max_over_ranks(comm, own_seconds));
  return lesson.finish(format("%d ranks, %d tokens: exact, in N - 1 = %d hops", comm.size(),
                              static_cast<int>(problem.kv.seq), comm.size() - 1));
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv,
                  [&](const Communicator& comm) { return blocking_ring_lesson(argc, argv, comm); });
}
