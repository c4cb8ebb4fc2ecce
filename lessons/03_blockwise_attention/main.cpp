// Lesson 03: blockwise attention. The one new idea is blockwise_attention() below: one tile of scores at a
// time, and a state (o, m, l) for each query.
#include "costs.hpp"
#include "ring_attention/attention/blockwise.hpp"

using namespace ring_attention;

namespace {

using costs::FloatView, costs::Head;

// What a mutant replaces.
struct Rules {
  bool (*skip)(Coverage) = [](Coverage coverage) { return coverage == Coverage::none; };
  float (*factor)(float from, float to) = rescale<float>;  // lesson 02: e^{from - to}, and 0 from -inf
  bool move_o = true;                                      // o follows the maximum, as l does
};

// ---- The idea ------------------------------------------------------------------------------------------
// Lesson 01 on a tile: s becomes p = e^{s - m} with the tile's own m, and o = p v is not divided by l.
void softmax_of_tile(MatrixMap<float> s, const MatrixMap<const float>& v, Partial<float>& tile,
                     const Rules& rules) {
  for (Index a = 0; a < s.rows(); ++a) {
    float m = negative_infinity<float>, l = 0;
    for (Index b = 0; b < s.cols(); ++b) m = std::max(m, s(a, b));
    for (Index b = 0; b < s.cols(); ++b) l += s(a, b) = rules.factor(s(a, b), m);
    tile.m.data()[a] = m;
    tile.l.data()[a] = l;
  }
  matrix(tile.o.view(), 0, 0, 0, s.rows()).noalias() = s * v;
}

// Lesson 02 on each query: o and l of both are moved to the common maximum and added.
void merge_tile(Partial<float>& sum, Index first_query, const Partial<float>& tile, Index queries,
                const Rules& rules) {
  for (Index a = 0; a < queries; ++a) {
    float &m = sum.m.data()[first_query + a], &l = sum.l.data()[first_query + a];
    const float top = std::max(m, tile.m.data()[a]);
    const float keep = rules.factor(m, top), add = rules.factor(tile.m.data()[a], top);
    const std::span<float> o = sum.o.view().row(0, 0, first_query + a);
    const std::span<const float> tile_o = tile.o.view().row(0, 0, a);
    for (std::size_t d = 0; d < o.size(); ++d) o[d] = (rules.move_o ? keep : 1) * o[d] + add * tile_o[d];
    l = keep * l + add * tile.l.data()[a];
    m = top;
  }
}

// One head. Of the S x S scores one tile [block, block] exists at a time.
AttentionResult<float> blockwise_attention(const FloatView& q, const FloatView& k, const FloatView& v,
                                           const Scoring& scoring, Index block, const Rules& rules = {}) {
  const Index seq = q.shape().seq;
  Partial<float> sum = Partial<float>::empty(q.shape()),
                 tile = Partial<float>::empty(q.shape().with_seq(block));
  Tensor<float> scores(Shape{1, 1, block, block});
  for (Index i = 0; i < seq; i += block) {
    for (Index j = 0; j < seq; j += block) {
      const TokenRange queries{i, 1, std::min(block, seq - i)}, keys{j, 1, std::min(block, seq - j)};
      const Coverage coverage = scoring.mask.coverage(queries, keys);
      if (rules.skip(coverage)) continue;
      MatrixMap<float> s{scores.data(), queries.count, keys.count};
      s.noalias() = matrix(q, 0, 0, i, queries.count) * matrix(k, 0, 0, j, keys.count).transpose();
      s *= static_cast<float>(scoring.scale);
      for (Index a = 0; a < s.rows() && coverage != Coverage::full; ++a)
        for (Index b = 0; b < s.cols(); ++b)
          if (!scoring.mask.allowed(i + a, j + b)) s(a, b) = negative_infinity<float>;
      softmax_of_tile(s, matrix(v, 0, 0, j, keys.count), tile, rules);
      merge_tile(sum, i, tile, queries.count, rules);
    }
  }
  return finish(std::move(sum));  // out = o / l, lse = m + log l
}
// --------------------------------------------------------------------------------------------------------

// Which tiles a causal mask leaves: 2 full, 1 partly masked, 0 skipped. Rows are tiles of queries.
void show_tiles(Lesson& lesson, Index seq, Index block) {
  std::vector<std::vector<Index>> map;
  std::array<Index, 3> tiles{};
  for (Index i = 0; i < seq; i += block) {
    map.emplace_back();
    std::string line = "  ";
    for (Index j = 0; j < seq; j += block) {
      const Coverage coverage =
          Mask::causal().coverage({i, 1, std::min(block, seq - i)}, {j, 1, std::min(block, seq - j)});
      const std::size_t kind = coverage == Coverage::none ? 0 : coverage == Coverage::partial ? 1 : 2;
      map.back().push_back(static_cast<Index>(kind));
      ++tiles[kind];
      line += std::array{" .", " /", " #"}[kind];
    }
    lesson.say(line);
  }
  const auto n = static_cast<Index>(map.size());
  lesson.check(
      "the causal mask skips n (n - 1) / 2 of n x n tiles", tiles[0] == n * (n - 1) / 2,
      format("%lld full, %lld partly masked, %lld skipped", tiles[2] + 0LL, tiles[1] + 0LL, tiles[0] + 0LL));
  lesson.record("tile_coverage", map);
}

// A tile in which a query sees no key has m = -inf, and e^{-inf - (-inf)} is NaN.
void show_masked_tiles(Lesson& lesson, const Head& h, const Scoring& scoring, Index block,
                       const Rules& rules) {
  Rules visit_all = rules, unguarded;
  visit_all.skip = unguarded.skip = [](Coverage) { return false; };
  unguarded.factor = [](float from, float to) { return std::exp(from - to); };
  const AttentionResult<float> broken = blockwise_attention(h.q, h.k, h.v, scoring, block, unguarded);
  const Index lost = count_non_finite(broken.lse.view()).count;
  lesson.say(
      format("  no tile skipped, no guard: NaN in %lld of %lld rows", lost + 0LL, h.q.shape().seq + 0LL));
  lesson.say("  (finish() looks for l == 0, but there l is NaN)");
  lesson.record("nan_rows", lost);
  const AttentionResult<float> skipped = blockwise_attention(h.q, h.k, h.v, scoring, block, rules),
                               visited = blockwise_attention(h.q, h.k, h.v, scoring, block, visit_all);
  lesson.check("no tile skipped, with the guard: a masked tile changes no bit",
               bitwise_equal(skipped.out, visited.out) && bitwise_equal(skipped.lse, visited.lse));
}

// The same result for every block within the tolerance; the same bits only for the same block.
void check_blocks(Lesson& lesson, const Head& h, const RandomProblem& problem, Index block,
                  const Rules& rules) {
  const Reference want = problem.reference<float>(whole(problem.q.seq));
  const Tolerance tolerance = problem.tolerance<float>(want);
  const AttentionResult<float> usual = blockwise_attention(h.q, h.k, h.v, problem.scoring, block, rules);
  Comparison worst_out = compare(usual.out, want.out, tolerance),
             worst_lse = compare(usual.lse, want.lse, tolerance);
  const auto keep_worst = [](Comparison& worst, const Comparison& next) {
    const bool no_worse = next.ok && next.max_error <= worst.max_error;
    if (worst.ok && !no_worse) worst = next;
  };
  bool same_bits = true;
  Table table({"block", "max error of out", "elements unlike those of block " + std::to_string(block)});
  std::vector<Index> blocks{1, 7, 16, 64, 100, problem.q.seq}, unlike;
  std::vector<double> errors;
  for (const Index size : blocks) {
    const AttentionResult<float> got = blockwise_attention(h.q, h.k, h.v, problem.scoring, size, rules),
                                 library = blockwise_forward<float>(h.q, h.k, h.v, problem.scoring, size);
    same_bits = same_bits && bitwise_equal(got.out, library.out) && bitwise_equal(got.lse, library.lse);
    const Comparison out = compare(got.out, want.out, tolerance);
    keep_worst(worst_out, out);
    keep_worst(worst_lse, compare(got.lse, want.lse, tolerance));
    errors.push_back(out.max_error);
    unlike.push_back(0);
    for (Index i = 0; i < got.out.size(); ++i)
      unlike.back() += got.out.data()[i] != usual.out.data()[i] ? 1 : 0;
    table.row({std::to_string(size), human_error(out.max_error),
               format("%lld of %lld", unlike.back() + 0LL, got.out.size() + 0LL)});
  }
  lesson.print(table);
  lesson.check("every block: bit for bit the library's engine with that block", same_bits);
  lesson.check("every block: out agrees with the dense reference in double", worst_out);
  lesson.check("every block: lse agrees with the dense reference in double", worst_lse);
  lesson.record("blocks", blocks);
  lesson.record("block_errors", errors);
  lesson.record("block_differing", unlike);
}

int blockwise_attention_lesson(int argc, char** argv) {
  Lesson lesson("03", "blockwise_attention",
                "Attention needs S x S scores, but not at the same time: a tile of them is made, used and "
                "overwritten,\n"
                "and each query keeps (o, m, l). Memory grows with S, not with S x S.");
  Index seq = 500, dim = 32, block = 64;
  lesson.options().option("--seq", seq, "Tokens S; need not be a multiple of the block");
  lesson.options().option("--dim", dim, "Head dim D");
  lesson.options().option("--block", block, "Queries and keys in a tile");
  lesson.offer_mutants({{"unguarded", "e^{s - m} with the tile's own m, also when that is -inf"},
                        {"o-stays", "l is moved when the maximum grows, o is not"},
                        {"skip-diagonal", "partly masked tiles are skipped as well"}});
  if (!lesson.parse(argc, argv)) return 0;
  Rules rules;
  if (lesson.mutant("unguarded")) rules.factor = [](float from, float to) { return std::exp(from - to); };
  if (lesson.mutant("o-stays")) rules.move_o = false;
  if (lesson.mutant("skip-diagonal"))
    rules.skip = [](Coverage coverage) { return coverage != Coverage::full; };
  const RandomProblem problem = costs::problem_of(lesson.seed(), seq, dim, 16);  // with spiked scores
  const Head head(problem);

  const costs::Tiled tiled = [](const FloatView& q, const FloatView& k, const FloatView& v,
                                const Scoring& scoring,
                                Index rows) { return blockwise_attention(q, k, v, scoring, rows); };
  lesson.heading("The failure: what dense attention has to hold, per head");
  costs::show_memory(lesson, dim, block, tiled);
  lesson.heading("The tiles: # full, / partly masked, . skipped");
  show_tiles(lesson, seq, block);
  lesson.heading("A masked tile");
  show_masked_tiles(lesson, head, problem.scoring, block, rules);
  lesson.heading("The agreement");
  check_blocks(lesson, head, problem, block, rules);
  lesson.heading("The time");
  costs::show_time(lesson, dim, block, tiled);
  return lesson.finish("exact attention, one tile of scores at a time");
}

}  // namespace

int main(int argc, char** argv) {
  return serial_main([&] { return blockwise_attention_lesson(argc, argv); });
}
