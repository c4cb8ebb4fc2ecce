// Lesson 15: decoding. The idea is in decoding.hpp; this program shows what a ring would send for one token, decodes on
// any number of ranks, compares each token with one causal forward, and shows which tests pass for which mistakes.
#include LESSON_IDEA

#include "failure.hpp"
#include "pass_q.hpp"
#include "ring_attention/parallel/decode/decode.hpp"
#include "weak_tests.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_15;

namespace {

// Which rank keeps which token: a prompt of 10 in zigzag placement, then 10 more.
void show_cache(Lesson& lesson, const Communicator& comm) {
  const Placement prompt(PlacementKind::zigzag, 10, comm.size());
  for (int rank = 0; rank < comm.size(); ++rank) {
    std::string line = "  rank " + std::to_string(rank) + "  prompt";
    for (const Index position : positions(prompt.ranges(rank))) line += " " + std::to_string(position);
    line += ", then";
    for (Index position = 10; position < 20; ++position)
      if (lesson::keeper(position, comm.size()) == rank) line += " " + std::to_string(position);
    lesson.say(line);
  }
}

// The same tokens with the library: its cache, its engine for a piece of keys, its merge.
AttentionResult<double> decode_with_library(const Communicator& comm, const RankShare& part,
                                            const Setup& setup) {
  const Placement prompt(setup.kind, setup.prompt, comm.size());
  const TokenRanges own = prompt.ranges(comm.rank());
  const Tensor<double> q = part.rotated_queries(), k = part.rotated_keys();
  MpiAllToAll link(comm);
  ShardedCache<double> cache(setup.kv.seq, prompt, comm.rank(), rows_at(k, own).view(),
                             rows_at(part.values(), own).view());
  const Shape rows = setup.q.with_seq(part.decoded());
  AttentionResult<double> all{Tensor<double>(rows), Tensor<double>(rows.per_row())};
  for (Index token = 0; token < part.decoded(); ++token) {
    const TokenRanges newest{{cache.size(), 1, 1}};
    (void)cache.append(rows_at(k, newest).view(), rows_at(part.values(), newest).view());
    const Tensor<double> query = rows_at(q, newest);
    const auto row =
        decode<CpuEngine<double>>(link, query.view(), cache, Scoring{part.scale(), Mask::causal()});
    copy_tokens(row.out.view(), 0, 1, all.out.view(), token);
    copy_tokens(row.lse.view(), 0, 1, all.lse.view(), token);
  }
  return all;
}

void check_agreement(Lesson& lesson, const Communicator& comm, const Setup& usual, Mistake mistake) {
  std::vector<Setup> setups{usual};
  setups[0].prompt = 0;
  for (const PlacementKind kind :
       {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag}) {
    setups.push_back(usual);
    setups.back().kind = kind;
  }
  std::vector<double> none{0, 0, negative_infinity<double>, 0};  // o of two numbers, m and l of no key
  lesson::merge(none, std::vector<double>(none));
  lesson.check("two states without a key: one without a key",
               none == std::vector<double>{0, 0, negative_infinity<double>, 0});
  for (const Setup& setup : setups) {
    const RankShare part(comm, setup);
    const Result got = part.run(mistake);
    const Reference want = part.oracle();
    const Tolerance tolerance =
        attention_tolerance<double>(setup.kv.seq, want.max_abs_score, want.max_abs_value);
    const std::string name = setup.prompt == 0 ? "no prompt" : "prompt " + ring_attention::name(setup.kind);
    lesson.check(name + ": out is that of one causal forward", compare(got.rows.out, want.out, tolerance));
    lesson.check(name + ": lse is that of one causal forward", compare(got.rows.lse, want.lse, tolerance));
    lesson.check(name + ": the library's decode agrees",
                 compare(decode_with_library(comm, part, setup).out, want.out, tolerance));
    if (setup.kind == PlacementKind::zigzag)
      lesson.check(name + ": the merge as an MPI_Op agrees",
                   compare(part.run(mistake, Merge::by_mpi).rows.out, want.out, tolerance));
    lesson.check(name + ": no rank holds more than its share", got.held <= fair_share(setup, comm.size()));
    const Index bytes = (comm.size() - 1) * setup.q.heads * (setup.q.dim + 2) * 8;
    lesson.check(name + ": a token sends N - 1 states from each rank",
                 got.sent.bytes_sent == part.decoded() * bytes);
  }
}

// Appendix C of the Ring Attention paper with its units: TPU v5e, 32 devices, LLaMA 7B.
void show_appendix(Lesson& lesson) {
  constexpr double bytes_per_second = 186e9, flops_per_second = 0.4 * 196e12, hidden = 4096;
  const double ratio = bytes_per_second / flops_per_second;
  // K,V of c tokens in 2 bytes are 4 c d bytes; all matrices of a layer are 24 d^2 FLOP for one token.
  const double hides = 6 * hidden * ratio;
  lesson.say(format("  B / F as printed, GB/s by TFLOP/s: %.2g; in bytes and FLOP: %.2g bytes for each FLOP",
                    ratio * 1e3, ratio));
  lesson.say(format(
      "  One query: 4 c d FLOP for 4 c d bytes, so a ring hides when B >= F; here F / B is %.0f", 1 / ratio));
  lesson.say(format("  All matrices of a layer hide hops of shards of at most %.0f tokens", hides));
  lesson.say(
      "  32 KV heads over 32 devices are 1 head each.\n"
      "  Cutting the sequence gains N / Hkv more: 1 here, 4 with 8 KV heads");
  lesson.check("a query's attention hides no hop on these devices", ratio < 1 && hides < 100);
}

int decoding_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson("15", "decoding",
                "One new token attends to all keys. A ring would send the keys to its query. The state of "
                "the query is a\n"
                "row of D + 2 numbers per head: it travels instead, and is merged.",
                &comm);
  ProblemFlags flags{.seq = 37, .heads = 4, .kv_heads = 2, .dim = 16};
  flags.offer(lesson, {}, "Tokens; the second half is decoded one by one");
  lesson.offer_mistakes(every_mistake);
  if (!lesson.parse(argc, argv)) return 0;
  const RandomProblem problem = flags.problem(lesson);
  const Mistake mistake = lesson.mistake_of(every_mistake);
  if (mistake == Lesson::no_mistake) {
    lesson.heading("The failure: a ring moves the cache for one row");
    show_failure(lesson, comm);
  }
  lesson.heading("The idea: a cache that grows on every rank");
  show_cache(lesson, comm);
  lesson.heading("The agreement: tokens one by one, and one causal forward");
  check_agreement(lesson, comm, {problem.q, problem.kv, problem.q.seq / 2, lesson.seed()}, mistake);
  const std::string showed =
      counted(comm.size(), "rank") + ", " + counted(problem.kv.seq, "token") + ": rows of one causal forward";
  if (mistake != Lesson::no_mistake) return lesson.finish(showed);  // the rest shows all mistakes
  if (comm.size() > 1) {
    lesson.heading("Mistakes, and tests that pass for them");
    show_mistakes(lesson, comm);
  }
  lesson.heading("A few new tokens: K,V or queries");
  show_rule(lesson);
  lesson.heading("The cost: appendix C of the paper, with its units");
  show_appendix(lesson);
  return lesson.finish(showed);
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return decoding_lesson(argc, argv, comm); });
}
