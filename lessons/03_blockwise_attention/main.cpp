// Lesson 03: blockwise attention. blockwise_attention.hpp is the idea; this program shows what it is good for.
#include LESSON_IDEA
#include LESSON_MISTAKES

#include "common/saved_cases.hpp"
#include "costs.hpp"
#include "ring_attention/attention/blockwise.hpp"
#include "tiles.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson;

// The same result for every block within the tolerance; the same bits only for the same block.
void check_blocks(Lesson& lesson, const costs::Head& h, const RandomProblem& problem, Index block,
                  const Choices& choices) {
  const Reference want = problem.reference<float>(whole(problem.q.seq));
  const Tolerance tolerance = problem.tolerance<float>(want);
  const AttentionResult<float> usual = blockwise_attention(h.q, h.k, h.v, problem.scoring, block, choices);
  Comparison worst_out = compare(usual.out, want.out, tolerance),
             worst_lse = compare(usual.lse, want.lse, tolerance);
  SavedCases(lesson.save_folder(), {PlacementKind::contiguous, static_cast<int>(problem.q.seq / block)})
      .add<float>("causal", problem, whole(problem.q.seq), {{"out", usual.out}, {"lse", usual.lse}});
  const auto keep_worst = [](Comparison& worst, const Comparison& next) {
    const bool no_worse = next.ok && next.max_error <= worst.max_error;
    if (worst.ok && !no_worse) worst = next;
  };
  bool same_bits = true;
  Table table({"block", "max error of out", "elements unlike those of block " + std::to_string(block)});
  for (const Index size : std::vector<Index>{1, 7, 16, 64, 100, problem.q.seq}) {
    const AttentionResult<float> got = blockwise_attention(h.q, h.k, h.v, problem.scoring, size, choices),
                                 library = blockwise_forward<float>(h.q, h.k, h.v, problem.scoring, size);
    same_bits = same_bits && bitwise_equal(got.out, library.out) && bitwise_equal(got.lse, library.lse);
    const Comparison out = compare(got.out, want.out, tolerance);
    keep_worst(worst_out, out);
    keep_worst(worst_lse, compare(got.lse, want.lse, tolerance));
    Index unlike = 0;
    for (Index i = 0; i < got.out.size(); ++i) unlike += got.out.data()[i] != usual.out.data()[i] ? 1 : 0;
    table.row({std::to_string(size), human_error(out.max_error),
               std::to_string(unlike) + " of " + std::to_string(got.out.size())});
  }
  lesson.print("blocks", table);
  lesson.check("every block: bit for bit the library's readable engine with that block", same_bits);
  lesson.check("every block: out agrees with the dense reference in double", worst_out);
  lesson.check("every block: lse agrees with the dense reference in double", worst_lse);
}

int blockwise_attention_lesson(int argc, char** argv) {
  Lesson lesson("03", "blockwise_attention",
                "Attention needs S x S scores, but not at the same time: a tile of them is made, used and "
                "overwritten,\n"
                "and each query keeps (o, m, l). Memory grows with S, not with S x S.");
  Index seq = 500, dim = 32, block = 64;
  lesson.options().option("--seq", seq, "Tokens S; need not be a multiple of the block");
  lesson.options().option("--dim", dim, "Head dim D");
  lesson.options().option("--tile", block, "Queries and keys in a tile");
  lesson.options().renamed("--block", "--tile");
  lesson.offer_mutants({{"unguarded", "e^{s - m} with the tile's own m, also when that is -inf"},
                        {"o-stays", "l is moved when the maximum grows, o is not"},
                        {"skip-diagonal", "partly masked tiles are skipped as well"}});
  lesson.offer_save();
  if (!lesson.parse(argc, argv)) return 0;
  Choices choices;
  if (lesson.mutant("unguarded")) choices.factor = [](float from, float to) { return std::exp(from - to); };
  if (lesson.mutant("o-stays")) choices.move_o = false;
  if (lesson.mutant("skip-diagonal"))
    choices.skip = [](Coverage coverage) { return coverage != Coverage::full; };
  const RandomProblem problem = costs::problem_of(lesson.seed(), seq, dim, 16);  // with spiked scores
  const Head head(problem);

  const costs::Tiled tiled = [](const auto& q, const auto& k, const auto& v, const Scoring& scoring,
                                Index rows) { return blockwise_attention(q, k, v, scoring, rows); };
  lesson.heading("The failure: what dense attention has to hold, per head");
  costs::show_memory(lesson, dim, block, tiled);
  lesson.heading("The tiles: # full, / partly masked, . skipped");
  show_tiles(lesson, seq, block);
  lesson.heading("A masked tile");
  show_masked_tiles(lesson, head, problem.scoring, block, choices);
  lesson.heading("The agreement");
  check_blocks(lesson, head, problem, block, choices);
  lesson.heading("The time");
  costs::show_time(lesson, dim, block, tiled);
  lesson::name_mistakes(lesson);
  return lesson.finish("exact attention, one tile at a time");
}

int main(int argc, char** argv) {
  return serial_main([&] { return blockwise_attention_lesson(argc, argv); });
}
