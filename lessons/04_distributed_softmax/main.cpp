// Lesson 04: distributed softmax. distributed_softmax.hpp is the idea; this program shows what it is good for.
#include LESSON_IDEA
#include LESSON_MISTAKES

#include <bit>

#include "common/mpi_counter.hpp"
#include "costs.hpp"
#include "deadlock.hpp"
#include "ring_attention/ring/placement.hpp"
#include "row.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson;

void show_failures(Lesson& lesson, const Communicator& comm, const Tensor<float>& x) {
  const double sum = sum_over_row(normalised(x, state_of(x)), comm);
  const State lost = chain(state_of(x), comm, {.start = {-1e4F, 0}}).whole;
  lesson.say(format("  each rank normalises with its own (m, l): the row sums to %.4f, not to 1", sum));
  lesson.say(format("  started at m = -1e4, not -inf, the chain ends at m = %.0f, l = %g", lost.m, lost.l));
  lesson.say(format("  (e^{-200} is 0 in float), and then e^{x - m} / l = 0 / 0 = %f", std::abs(0 / lost.l)));
}

// Against the same merges in one process, a dense softmax, and MPI's own reductions.
void check_agreement(Lesson& lesson, const Communicator& comm, const Placement& placement,
                     const Tensor<float>& x, const State& whole_row) {
  const Index seq = placement.seq();
  State merged;
  for (int rank = 0; rank < comm.size(); ++rank)
    merged = merge(merged, state_of(scores(lesson, seq, placement.ranges(rank))));
  lesson.check("bit for bit the states merged in rank order by one process",
               std::bit_cast<std::uint64_t>(whole_row) == std::bit_cast<std::uint64_t>(merged));
  const Tensor<float> p = normalised(x, whole_row);
  // x - m is exact this near to m; l is a running sum of S terms, which loses eps/2 a term at most.
  const double eps = std::numeric_limits<float>::epsilon() * static_cast<double>(8 + seq);
  lesson.check("p agrees with a dense softmax in double",
               compare(p, dense_softmax(scores(lesson, seq, whole(seq)), placement.ranges(comm.rank())),
                       {.relative = eps}));
  const double sum = sum_over_row(p, comm);
  lesson.check("p sums to 1 over all ranks", std::abs(sum - 1) <= eps, format("%.6f", sum));
  const State reduced = all_reduce(state_of(x), comm);
  lesson.check("the all-reduces agree",
               reduced.m == whole_row.m && std::abs(reduced.l - whole_row.l) <= eps * whole_row.l);
}

int softmax_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "04", "distributed_softmax",
      "One row of scores lies in pieces on the ranks. Two numbers, (m, l), passed down the ranks and\n"
      "broadcast back, are all that a rank needs to normalise its own piece.",
      &comm);
  Index seq = 1003;
  lesson.options().option("--seq", seq, "Scores S in the row; any number, also fewer than ranks");
  lesson.offer_mutants({{"finite-start", "start at m = -1e4 instead of -inf"},
                        {"forgot-rescale", "add l without moving it to the new maximum"},
                        {"no-broadcast", "normalise with what the ranks before have seen"},
                        {"small-messages", "look for the deadlock with up to 1 KiB only"}});
  if (!lesson.parse(argc, argv)) return 0;
  Choices choices;
  if (lesson.mutant("finite-start")) choices.start.m = -1e4F;
  if (lesson.mutant("forgot-rescale"))
    choices.update = [](const State& a, const State& b) { return State{std::max(a.m, b.m), a.l + b.l}; };
  choices.broadcast = !lesson.mutant("no-broadcast");

  const Placement placement(PlacementKind::contiguous, seq, comm.size());
  const Tensor<float> x = scores(lesson, seq, placement.ranges(comm.rank()));
  const State own = state_of(x);
  lesson.heading("The failures: no messages, and a finite start");
  show_failures(lesson, comm, x);

  lesson.heading("The chain, spelled out");
  mpi_counter::reset();
  const Chained result = chain(own, comm, choices);
  const mpi_counter::Traffic traffic = mpi_counter::traffic();
  show_chain(lesson, comm, placement.tokens(comm.rank()), own, result.passed);

  lesson.heading("The agreement");
  check_agreement(lesson, comm, placement, x, result.whole);
  if (!lesson.has_mutant() || lesson.mutant("small-messages"))
    show_deadlock(lesson, comm, lesson.mutant("small-messages") ? 1024 : 64 << 20);
  show_cost(lesson, comm, own, traffic);
  lesson::name_mistakes(lesson, comm);
  return lesson.finish(
      format("%d ranks, %d scores: exact, %d messages", comm.size(), static_cast<int>(seq), comm.size() - 1));
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return softmax_lesson(argc, argv, comm); });
}
