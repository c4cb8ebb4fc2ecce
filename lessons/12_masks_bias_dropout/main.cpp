// Lesson 12: masks, bias, dropout. The idea is in pairs.hpp; this program shows what local indices do to each rule,
// compares all rules at once with the dense reference, and shows which tests pass for which mistakes.
#include LESSON_IDEA

#include "cli/median.hpp"
#include "common/problem.hpp"
#include "failure.hpp"
#include "mask_pictures.hpp"
#include "statistics.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_12;

namespace {

// Which pairs are visible: 12 queries, 16 keys.
void show_rules(Lesson& lesson) {
  Rules rules = no_rules(1);
  rules.left = 5;
  rules.right = 0;
  rules.offset = 4;
  rules.documents = {0, 7, 13};
  lesson.say("  12 queries, 16 keys: offset 4. A window of 6 keys, causal; documents begin at 0, 7 and 13.");
  for (Index query = 0; query < 12; ++query) {
    std::string line = format("  query %2d at %2d  ", static_cast<int>(query), static_cast<int>(query + 4));
    for (Index key = 0; key < 16; ++key) line += lesson::visible(rules, {0, 0, query, key}) ? " #" : " .";
    lesson.say(line);
  }
  const Mask mask = scoring_of(rules, 16).mask;
  bool same = true;
  for (Index query = 0; query < 12; ++query)
    for (Index key = 0; key < 16; ++key)
      same = same && mask.allowed(query, key) == lesson::visible(rules, {0, 0, query, key});
  lesson.check("the pairs are those of the library's mask", same);
}

// All rules at once against the dense reference; the library's readable engine on the same ring; what is sent.
void check_agreement(Lesson& lesson, const Communicator& comm, const Setup& usual, Mistake mistake) {
  for (const PlacementKind kind :
       {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag}) {
    Setup setup = usual;
    setup.kind = kind;
    const RankShare part(comm, setup);
    const Result got = part.run(mistake);
    const RankShare::Oracle want = part.oracle();
    for (const auto& [name, comparison] : compare_all(part, got, want))
      lesson.check(ring_attention::name(kind) + ": " + name + " agrees with the dense reference", comparison);

    BlockwiseEngine<double> engine(scoring_of(setup.rules, setup.kv.seq));
    lesson.check(ring_attention::name(kind) + ": the library's engine agrees",
                 compare(part.ring_with(engine).out, want.forward.out,
                         attention_tolerance<double>(setup.kv.seq, want.forward.max_abs_score,
                                                     want.forward.max_abs_value),
                         {.expect_zero = all_zero(want.forward.out)}));
    if (kind != PlacementKind::contiguous) continue;
    const Index others = comm.size() == 1 ? 0 : setup.kv.seq - part.keys().tokens(part.ring().next());
    lesson.check("N - 1 hops and the bytes of K,V, as without any rule",
                 got.forward_hops.messages_sent == comm.size() - 1 &&
                     got.forward_hops.bytes_sent == 2 * setup.kv.with_seq(others).size() * 8);
  }
}

// Each rule alone, without dropout.
void save_rules(const Lesson& lesson, const Communicator& comm, Mistake mistake) {
  if (lesson.save_folder().empty()) return;
  SavedCases saved(lesson.save_folder(), {PlacementKind::contiguous, comm.size(), comm.rank()});
  const auto add = [&](const char* of_case, DenseBias bias, auto change) {
    Setup setup{{1, 4, 24, 16}, {1, 2, 24, 16}, no_rules(16), bias, lesson.seed()};
    change(setup.rules);
    const RankShare part(comm, setup);
    const Result got = part.run(mistake);
    const std::vector<double>& sinks = setup.rules.sinks;
    saved.add<double>(of_case, {setup.q, setup.kv, {}, lesson.seed()}, part.ranges(),
                      {{"out", got.attended.out},
                       {"lse", got.attended.lse},
                       {"dq", got.gradients.q},
                       {"dk", got.gradients.k},
                       {"dv", got.gradients.v},
                       {"bias", part.own().bias},
                       {"sinks", {sinks.data(), {1, std::ssize(sinks), 1, 1}}}});
  };
  add("causal", DenseBias::none, [](Rules& rules) { rules.right = 0; });
  add("window", DenseBias::none, [](Rules& rules) { rules.left = 4, rules.right = 0; });
  add("documents", DenseBias::none, [](Rules& rules) { rules.right = 0, rules.documents = {0, 5, 14}; });
  add("alibi", DenseBias::none, [](Rules& rules) { rules.right = 0, rules.slopes = alibi_slopes(4); });
  add("bias", DenseBias::random, [](Rules&) {});
  add("sinks", DenseBias::none, [](Rules& rules) { rules.right = 0, rules.sinks = {1, 0.5, 2, 1.3}; });
}

// Seconds of the library's readable engine on one rank, and the memory of a bias.
void show_cost(Lesson& lesson, const Communicator& comm) {
  constexpr Index seq = 256, heads = 2, dim = 64;
  const Communicator self(MPI_COMM_SELF);
  double plain = 0;
  Table table({"readable engine, 256 tokens", "forward", "x plain"});
  const auto time = [&](const char* name, DenseBias bias, auto change) {
    Setup setup{{1, heads, seq, dim}, {1, heads, seq, dim}, no_rules(dim), bias, lesson.seed()};
    change(setup.rules);
    const RankShare part(self, setup);
    std::vector<double> runs;
    for (int i = 0; i < 5; ++i) {
      BlockwiseEngine<double> engine(scoring_of(setup.rules, seq));
      const double begin = MPI_Wtime();
      (void)part.ring_with(engine);
      runs.push_back(MPI_Wtime() - begin);
    }
    const double seconds = max_over_ranks(comm, median(runs));
    if (!(plain > 0)) plain = seconds;
    table.row({name, human_seconds(seconds), format("%.2f", seconds / plain)});
  };
  time("plain", DenseBias::none, [](Rules&) {});
  time("ALiBi", DenseBias::none, [](Rules& rules) { rules.slopes = alibi_slopes(heads); });
  time("dense bias", DenseBias::random, [](Rules&) {});
  time("sinks", DenseBias::none, [](Rules& rules) { rules.sinks = {0, 0}; });
  time("dropout", DenseBias::none, [](Rules& rules) { rules.dropout.probability = 0.1; });
  lesson.print("times", table);
  constexpr Index bias_bytes = Index{65536} / 8 * 65536 * 4, kv_bytes = Index{2} * 65536 / 8 * 128 * 4;
  lesson.say("  65536 tokens on 8 ranks, one head, float32: a bias takes " + human_bytes(bias_bytes) +
             " a rank, K and V (D = 128) take " + human_bytes(kv_bytes));
}

int masks_bias_dropout_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson("12", "masks_bias_dropout",
                "A mask, a bias and a dropout are functions of positions in the whole sequence. With local\n"
                "indices each of them is right on one rank and wrong on more.",
                &comm);
  ProblemFlags flags{.seq = 61, .heads = 4, .kv_heads = 2, .dim = 16};
  flags.offer(lesson, {}, "Queries; any number, also fewer than ranks. There are 9 keys more");
  lesson.offer_mistakes(every_mistake);
  lesson.offer_save();
  if (!lesson.parse(argc, argv)) return 0;
  const Shape q = flags.problem(lesson).q;
  const Mistake mistake = lesson.mistake_of(every_mistake);

  lesson.heading("The failure: local indices instead of global positions. The error of out");
  show_failure(lesson, comm);
  lesson.heading("The idea: a rule is a function of two positions");
  show_rules(lesson);
  lesson.heading("Masks of one interval of keys and of several");
  show_masks(lesson);
  lesson.heading(format("The agreement: all rules at once, %d queries and %d keys on %s",
                        static_cast<int>(q.seq), static_cast<int>(q.seq + 9),
                        counted(comm.size(), "rank").c_str()));
  check_agreement(lesson, comm, everything(q.seq, q.seq + 9, q.heads, flags.kv_heads, q.dim, lesson.seed()),
                  mistake);
  save_rules(lesson, comm, mistake);
  const std::string showed = counted(comm.size(), "rank") + ": all rules at once, exact";
  if (mistake != Lesson::no_mistake || !lesson.save_folder().empty())
    return lesson.finish(showed);  // the rest shows all mistakes
  lesson.heading("Mistakes, and a test that passes for each of them");
  show_mistakes(lesson, comm);
  lesson.heading("The mask of the dropout as random numbers");
  show_statistics(lesson, comm);
  lesson.heading("The cost");
  if (lesson.measures(q.seq)) show_cost(lesson, comm);
  return lesson.finish(showed);
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv,
                  [&](const Communicator& comm) { return masks_bias_dropout_lesson(argc, argv, comm); });
}
