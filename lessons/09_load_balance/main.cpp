// Lesson 09: load balance. The idea is in placements.hpp; this program shows the pairs of each rank and step for three
// placements, runs the ring on each of them, and measures it.
#include LESSON_IDEA

#include "balanced.hpp"
#include "common/problem.hpp"
#include "timing.hpp"

using namespace ring_attention;

using lesson::count_pairs, lesson::critical_path, lesson::Tokens;
using TokensOf = Tokens (*)(PlacementKind kind, Index seq, Index r, Index n);

// The mutant.
Tokens zigzag_with_wrong_partner(PlacementKind kind, Index seq, Index r, Index n) {
  if (kind != PlacementKind::zigzag) return lesson::tokens_of(kind, seq, r, n);
  Tokens tokens;
  lesson::add_chunk(tokens, seq, r, 2 * n);
  lesson::add_chunk(tokens, seq, n + r, 2 * n);
  return tokens;
}

std::vector<Tokens> shards_of(PlacementKind kind, Index seq, Index n, TokensOf tokens_of) {
  std::vector<Tokens> shards;
  for (Index r = 0; r < n; ++r) shards.push_back(tokens_of(kind, seq, r, n));
  return shards;
}

bool same_as_library(PlacementKind kind, Index seq, int n, TokensOf tokens_of) {
  const Placement placement(kind, seq, n);
  for (int r = 0; r < n; ++r)
    if (tokens_of(kind, seq, r, n) != positions(placement.ranges(r))) return false;
  return true;
}

// N = 8, S = 256, whatever this run has.
void show_placement(Lesson& lesson, PlacementKind kind, const std::string& expected, TokensOf tokens_of) {
  constexpr Index ranks = 8, seq = 256;
  const Work work = count_pairs(shards_of(kind, seq, ranks, tokens_of));
  const std::string ratio = format("%.3f", critical_path(work) / ideal(work));
  print_work(lesson, kind, work);
  lesson.check(name(kind) + ": the pairs are S (S + 1) / 2 in all", total(work) == seq * (seq + 1) / 2);
  lesson.check(name(kind) + ": critical path over ideal is " + expected, ratio == expected, ratio);
}

void show_rule(Lesson& lesson, const Communicator& comm, Index seq, TokensOf tokens_of) {
  const std::vector<Tokens> megatron{{0, 1, 14, 15}, {2, 3, 12, 13}, {4, 5, 10, 11}, {6, 7, 8, 9}};
  for (const PlacementKind kind : placement_kinds) {
    std::string line;
    for (const Tokens& shard : shards_of(kind, 16, 4, tokens_of)) {
      line += line.empty() ? "[" : " [";
      for (std::size_t i = 0; i < shard.size(); ++i) line += (i ? "," : "") + std::to_string(shard[i]);
      line += "]";
    }
    lesson.say(format("  %-10s  ", name(kind).c_str()) + line);
  }
  lesson.check("zigzag is Megatron's, for N = 4 and S = 16",
               shards_of(PlacementKind::zigzag, 16, 4, tokens_of) == megatron);
  for (const PlacementKind kind : placement_kinds)
    lesson.check(
        name(kind) + ": the tokens of every rank are the library's, at N = 8 and here",
        same_as_library(kind, 256, 8, tokens_of) && same_as_library(kind, seq, comm.size(), tokens_of));
}

void show_this_run(Lesson& lesson, const Communicator& comm, const RandomProblem& problem,
                   TokensOf tokens_of) {
  Table table({"placement", "by pairs", "by tiles", "CPU", "x zigzag", "wall", "x zigzag"});
  const std::vector<Timing> timings = time_placements(problem, comm);
  const Timing& zigzag = timings.back();
  for (std::size_t i = 0; i < placement_kinds.size(); ++i) {
    const Work pairs = count_pairs(shards_of(placement_kinds[i], problem.q.seq, comm.size(), tokens_of)),
               tiles = tile_pairs(placement_kinds[i], problem.q.seq, comm.size());
    const double cpu = critical_path(timings[i].cpu);
    table.row({name(placement_kinds[i]), format("%.3f", critical_path(pairs) / ideal(pairs)),
               format("%.3f", critical_path(tiles) / ideal(pairs)), human_seconds(cpu),
               format("%.2f", cpu / critical_path(zigzag.cpu)), human_seconds(timings[i].wall),
               format("%.2f", timings[i].wall / zigzag.wall)});
  }
  lesson.print("this_run", table);
  lesson.say(format(
      "  by pairs, by tiles: critical path over ideal; in a tile %d queries meet the keys of the last.",
      static_cast<int>(tile_queries())));
  lesson.say(
      format("  CPU: that path in seconds of the processor, the least of %d runs; wall: the loop, median.",
             repetitions));
  lesson.say_if_cores_are_shared("while a rank waits, another one uses its core: wall hides the imbalance.");
}

int load_balance_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson("09", "load_balance",
                "A causal mask hides half of all pairs, and a ring with contiguous shards makes half of\n"
                "the ranks wait for the other half. With other placements of the tokens all ranks compute.",
                &comm);
  ProblemFlags flags{.seq = 4096, .heads = 2, .kv_heads = 2, .dim = 64};
  flags.offer(lesson, {}, "Tokens S of the measured run; any number, also fewer than ranks");
  lesson.offer_mutants({{"wrong-partner", "zigzag pairs chunk r with chunk N + r"},
                        {"local-mask", "the mask compares local indices, not global positions"}});
  lesson.offer_save();
  if (!lesson.parse(argc, argv)) return 0;
  const TokensOf tokens_of = lesson.mutant("wrong-partner") ? zigzag_with_wrong_partner : lesson::tokens_of;
  const RandomProblem problem = flags.problem(lesson, Mask::causal());
  const Index seq = problem.q.seq;

  lesson.check("critical path of two ranks that both take 1, then 5: 6",
               critical_path(std::vector<std::vector<Index>>{{1, 5}, {1, 5}}) == 6);
  lesson.heading("The failure: contiguous shards. Pairs per rank and step, 8 ranks, 256 tokens, causal");
  show_placement(lesson, PlacementKind::contiguous, "1.872", tokens_of);

  lesson.heading("The idea: deal the tokens out differently, here 16 tokens on 4 ranks");
  show_rule(lesson, comm, seq, tokens_of);

  lesson.heading("Striped: token i on rank i mod N");
  show_placement(lesson, PlacementKind::striped, "1.027", tokens_of);

  lesson.heading("Zigzag: chunks r and 2N - 1 - r of 2N");
  show_placement(lesson, PlacementKind::zigzag, "1.000", tokens_of);

  lesson.heading("Packed documents, 8 ranks, 8192 tokens: busiest rank / critical path, over ideal");
  show_documents(lesson, critical_path<Index>);

  lesson.heading(
      "Balanced: chunks of 64 tokens, dealt by a search. 4 ranks, 2048 tokens: the rank of each chunk");
  show_deals(lesson);
  lesson.heading(
      "Balanced, 8 ranks, 8192 tokens: busiest rank / finish without a barrier, over an equal share of "
      "tiles");
  show_balanced(lesson);

  lesson.heading(format("The agreement: %d tokens on %s, in natural order", static_cast<int>(seq),
                        counted(comm.size(), "rank").c_str()));
  check_results(lesson, problem, comm, ring_mistake(lesson.mutant("local-mask") ? "mask-local" : ""));

  lesson.heading("The cost: this run");
  if (lesson.measures(seq)) show_this_run(lesson, comm, problem, tokens_of);
  return lesson.finish("contiguous 1.872, striped 1.027, zigzag 1.000");
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv,
                  [&](const Communicator& comm) { return load_balance_lesson(argc, argv, comm); });
}
