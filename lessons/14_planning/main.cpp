// Lesson 14: planning. The idea is in recurrence.hpp; this program shows what a model with a barrier gets wrong, and
// holds the planner against the paper's tables and published measurements.
#include LESSON_IDEA

#include "hiding.hpp"
#include "noise.hpp"
#include "plan/ring_recurrence.hpp"
#include "tables.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_14;

namespace {

std::string chosen_mutant(const Lesson& lesson) {
  for (const auto& [name, description] : mistakes)
    if (lesson.mutant(name)) return name;
  return "none";
}

// The lesson's recurrence and the library's, under noise of computing and hops.
void show_agreement(Lesson& lesson, const std::string& mutant) {
  double largest = 0;
  for (const int ranks : {2, 3, 8, 31})
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const Seconds compute = noisy(0.3, seed);
      const Seconds hop = [=](int r, int t) { return 0.7 * plan::noise_factor(0.5, seed + 100, r, t); };
      const double library = plan::ring_seconds(ranks, ranks, ranks - 1, compute, hop);
      largest = std::max(largest, std::abs(ring_seconds(mutant, ranks, compute, hop) / library - 1));
    }
  lesson.check("under noise it is the library's, for 2 to 31 ranks", largest <= 1e-12,
               format("%.1e", largest));
  const double barrier =
      plan::ring_seconds(8, 8, 7, noisy(0.3, 1), [](int, int) { return 0.7; }, plan::Hops::lockstep);
  lesson.check("with a barrier, too",
               std::abs(lesson::barrier_seconds(8, noisy(0.3, 1), always(0.7)) / barrier - 1) <= 1e-12);
  lesson.check("with a barrier and 7 hops of 1.5 steps: 11.5 steps",
               std::abs(lesson::barrier_seconds(8, always(1), always(1.5)) - 11.5) <= 1e-12);
}

int planning_lesson(int argc, char** argv) {
  Lesson lesson(
      "14", "planning",
      "How long will a ring of 10000 devices take? A recurrence of two lines answers that, closed forms\n"
      "say what fits, and published measurements say how far to trust them.");
  lesson.offer_mutants(mistakes);
  if (!lesson.parse(argc, argv)) return 0;
  const std::string mutant = chosen_mutant(lesson);

  lesson.heading("The failure: a model in which all ranks wait for the slowest, at every step");
  const auto [barrier, ring] = show_noise(lesson, mutant);

  lesson.heading("The idea: a rank waits for its neighbours only");
  show_slow(lesson, mutant);
  show_known(lesson, mutant);
  show_agreement(lesson, mutant);

  lesson.heading("The paper's tables");
  check_table_2(lesson);
  show_table_3(lesson, mutant);
  show_figure_5(lesson);

  lesson.heading("Published measurements beside predictions");
  show_validation(lesson);

  lesson.heading("When a ring stops hiding");
  show_hiding(lesson);
  show_shared_links(lesson, mutant);

  return lesson.finish(format("64 ranks, noise 0.2: barrier %.2f, ring %.2f", barrier, ring));
}

}  // namespace

int main(int argc, char** argv) {
  return serial_main([&] { return planning_lesson(argc, argv); });
}
