// Lesson 06: the overlapped ring. The idea is in ring.hpp; `diff` of lesson 05's and this one shows what is new. This
// program times both, compares their results, and shows when a hop hides behind the compute.
#include LESSON_IDEA

#define lesson lesson_05  // lesson 05's ring, in a namespace of its own
#include "05_blocking_ring/ring.hpp"
#undef lesson

#include "common/noting_engine.hpp"
#include "common/ring_mutants.hpp"
#include "measurements.hpp"
#include "mistakes/mistaken_ring.hpp"
#include "simulated_link.hpp"

using namespace ring_attention;

int overlapped_ring_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "06", "overlapped_ring",
      "The ring of lesson 05, but K,V travel while the rank computes with them: start, compute, finish.\n"
      "The result is the same bit for bit. What changes is how long a rank waits.",
      &comm);
  ProblemFlags flags{.seq = 2048, .heads = 4, .kv_heads = 4, .dim = 64};
  flags.offer(lesson);
  const std::vector mutants{early_advance, algorithm_1_as_printed};
  lesson.offer_mistakes(mutants);
  lesson.offer_save();
  if (!lesson.parse(argc, argv)) return 0;
  const RandomProblem problem = flags.problem(lesson);
  const Ring ring{comm.rank(), comm.size()};
  const Placement placement(PlacementKind::contiguous, problem.kv.seq, comm.size());

  NotedSteps notes;  // of the run that was last
  const auto spelled_out = [&](auto* ring_of_lesson, const RingMistake& mistake) -> RingLoop {
    return [&, ring_of_lesson](Engine<float>& engine, RingBuffers& kv) {
      notes = {};
      MistakenEngine<float> given(std::make_shared<NotingEngine>(engine, notes),
                                  {mistake, ring, placement, [&] { return kv.incoming.data(); }},
                                  problem.q.heads);
      mpi_counter::reset();
      ring_of_lesson(given, kv.current, kv.incoming, problem.kv, placement, comm);
      return mpi_counter::traffic().exposed_seconds;
    };
  };
  const RingLoop here = spelled_out(lesson::ring, ring_mistake(lesson.mistake_of(mutants)));
  const RingLoop blocking = spelled_out(lesson_05::ring, ring_mistake(""));
  const RingLoop silent = [&](Engine<float>& engine, RingBuffers& kv) {
    SilentEngine without_calls(engine);
    return here(without_calls, kv);
  };

  lesson.heading("The failure: in lesson 05's ring no rank computes while K,V travel");
  std::vector<RingTiming> timings;
  if (lesson.measures(problem.q.seq)) {
    timings = time_in_turn(problem, comm, {blocking, silent, here});
    lesson.say("  blocking: " + human_seconds(timings[0].exposed) + " of " + human_seconds(timings[0].total) +
               format(" exposed, that is %.1f %%", 100 * timings[0].share()));
  }

  lesson.heading("The ring, spelled out");
  const AttentionResult<float> got = run_ring(problem, comm, here).result;
  const mpi_counter::Traffic cost = mpi_counter::traffic();
  lesson.say("  " + counted(comm.size(), "step") + ", " + counted(cost.hops, "hop") + ", " +
             human_bytes(cost.bytes) + " sent by rank 0; a hop starts before the compute and ends after it");

  lesson.heading("The agreement");
  lesson.check("at step t rank r computes with the K,V of rank (r - t) mod N",
               in_turn(owners_of(notes.steps(), problem, placement, ring), ring));
  CpuEngine<float> library(problem.scoring);
  lesson.check("bit for bit the library's overlapped ring",
               same_bits(got, run_library_ring<OverlappedTransport>(problem, comm, placement, library).rows));
  lesson.check("bit for bit the blocking ring of lesson 05",
               same_bits(got, run_ring(problem, comm, blocking).result));
  check_reference(lesson, problem, problem.reference<float>(placement.ranges(comm.rank())), got);
  SavedCases(lesson.save_folder(), {placement.kind(), comm.size(), comm.rank()})
      .add<float>("full", problem, placement.ranges(comm.rank()), {{"out", got.out}, {"lse", got.lse}});

  lesson.heading("The cost");
  lesson.check("hops are N - 1", cost.hops == comm.size() - 1, format("%d", static_cast<int>(cost.hops)));
  lesson.check("bytes sent are those of lesson 05", cost.bytes == forward_bytes(problem, placement, ring),
               format("%lld bytes from rank %d", static_cast<long long>(cost.bytes), comm.rank()));
  const std::string showed = counted(comm.size(), "rank") + ": the bits of lesson 05, with overlap";
  if (timings.empty()) return lesson.finish(showed);
  show_times(lesson, timings);

  lesson.heading("When a hop hides");
  show_condition(lesson, comm, problem);

  lesson.heading("A simulated link that takes no CPU cycles");
  show_simulated_link(lesson, comm, problem);
  return lesson.finish(showed);
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv,
                  [&](const Communicator& comm) { return overlapped_ring_lesson(argc, argv, comm); });
}
