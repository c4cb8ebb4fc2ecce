// Lesson 10: Ulysses, hybrid and all-gather. The idea is in ulysses.hpp; this program counts what each way sends,
// compares their results, and shows what is exposed.
#include LESSON_IDEA

#include "exposed.hpp"
#include "ring_attention/core/allocation.hpp"
#include "run.hpp"

using namespace ring_attention;
using namespace ring_attention::lesson_10;

// Every U that divides the ranks and can share the heads.
std::vector<int> ways_to_share(const RandomProblem& problem, int ranks) {
  std::vector<int> all;
  for (int ulysses = 1; ulysses <= ranks; ++ulysses)
    if (ranks % ulysses == 0 && can_share_heads(problem.q.heads, problem.kv.heads, ulysses))
      all.push_back(ulysses);
  return all;
}

// U ranks share heads, the others are rings: the bits of a ring of threads, the reference, the bytes.
void check_hybrid(Lesson& lesson, const Communicator& comm, const RandomProblem& problem, int ulysses) {
  const RankShare part(comm, problem, ulysses, lesson);
  const int rings = comm.size() / ulysses;
  const std::string name = format("U = %d, R = %d: ", ulysses, rings);
  const std::string same = rings == 1 ? "one device" : format("a ring of %d", rings);
  Sent sent;
  const Result got = run(part, sent), ring = part.by_ring();
  lesson.check(name + "out, lse and dQ have the bits of " + same,
               same_bits(got.attended, ring.attended) && bitwise_equal(got.gradients.q, ring.gradients.q));
  if (part.has_replicas())
    lesson.check(name + "dK, dV: the bits of " + same + " that adds ranks' parts in order",
                 same_bits(got.gradients, part.by_heads_of_ranks()));
  else
    lesson.check(name + "dK and dV, too", same_bits(got.gradients, ring.gradients));
  lesson.check(name + "all five agree with the dense reference in double", part.against_reference(got));
  const std::string folder = lesson.save_folder();
  SavedCases(folder.empty() ? "" : format("%s/ulysses_%d", folder.c_str(), ulysses),
             {PlacementKind::zigzag, comm.size(), comm.rank(), ulysses})
      .add<float>("alibi", problem, part.tokens(),
                  {{"out", got.attended.out},
                   {"lse", got.attended.lse},
                   {"dq", got.gradients.q},
                   {"dk", got.gradients.k},
                   {"dv", got.gradients.v}});
  lesson.check(
      name + "bytes as derived",
      sent.forward_bytes == part.forward_bytes() && sent.backward_bytes == part.backward_bytes() &&
          sent.ring.bytes_sent == part.ring_bytes(),
      format("%lld and %lld by all-to-all, %lld by ring", static_cast<long long>(sent.forward_bytes),
             static_cast<long long>(sent.backward_bytes), static_cast<long long>(sent.ring.bytes_sent)));
}

// All K,V to all ranks, by the library: the bits of the ring over all ranks.
void check_all_gather(Lesson& lesson, const Communicator& comm, const RandomProblem& problem) {
  const Placement placement(PlacementKind::zigzag, problem.q.seq, comm.size());
  const RankGrid grid(comm.rank(), comm.size(), 1);
  const TokenRanges rows = placement.ranges(comm.rank());
  const CpuDevice<float> device;
  MpiLinks links(comm, grid.ulysses, grid.ring);
  ContextParallel<float> attention(device, links,
                                   {grid, all_gather(), placement, problem.q, problem.kv, problem.scoring});
  const auto q = problem.queries<float>(rows), k = problem.make<float>(problem.kv, 1, rows),
             v = problem.make<float>(problem.kv, 2, rows), grad_out = problem.make<float>(problem.q, 3, rows);
  const Index before = allocation::current();
  const auto kv = attention.kv(k, v);
  const Index held = allocation::current() - before;
  const AttentionResult<float> attended = attention.forward(q, k, v);
  const Index sent = exchanged(links).bytes_sent;
  const Gradients<float> got = attention.backward({q, attended.out, attended.lse, grad_out}, k, v);

  const Result want = RankShare(comm, problem, 1, lesson).by_ring();
  lesson.check("all-gather: out, lse, dQ, dK and dV have the bits of the ring",
               same_bits(attended, want.attended) && same_bits(got, want.gradients));
  lesson.check("all-gather: K,V of all tokens held, the own sent to each rank",
               held == parcel_bytes(problem, problem.kv.seq) &&
                   sent == (comm.size() - 1) * parcel_bytes(problem, count(rows)),
               human_bytes(held) + ", " + human_bytes(sent));
}

int ulysses_lesson(int argc, char** argv, const Communicator& comm) {
  Lesson lesson(
      "10", "ulysses_and_hybrid",
      "A head of attention needs no other head. So instead of sending keys to queries, ranks can exchange\n"
      "tokens for heads, and each computes whole sequences of some heads.",
      &comm);
  ProblemFlags flags{.seq = 512, .heads = 8, .kv_heads = 2, .dim = 32};
  flags.offer(lesson);
  lesson.offer_mutants(mutants);
  lesson.offer_save();
  if (!lesson.parse(argc, argv)) return 0;
  RandomProblem problem = flags.problem(lesson, Mask::causal());
  problem.scoring.alibi_slopes = alibi_slopes(problem.q.heads);
  const std::vector<int> ulysses = ways_to_share(problem, comm.size());
  std::string numbers;
  for (const int ranks : ulysses) numbers += (numbers.empty() ? "" : ", ") + std::to_string(ranks);
  const std::string showed = counted(comm.size(), "rank") + ": U = " + numbers + ": the bits of a ring";

  lesson.heading("The failure: with many heads a ring sends too much, with few KV heads Ulysses does");
  show_failure(lesson);
  lesson.heading(format("The agreement: %d tokens, %d query heads, %d KV heads, zigzag, causal, ALiBi",
                        static_cast<int>(problem.q.seq), static_cast<int>(problem.q.heads),
                        static_cast<int>(problem.kv.heads)));
  for (const int ranks : ulysses) check_hybrid(lesson, comm, problem, ranks);
  check_all_gather(lesson, comm, problem);
  if (lesson.has_mutant()) return lesson.finish(showed);

  lesson.heading("The cost: what each rank sends in a forward");
  show_volumes(lesson);
  lesson.heading("Heads that ranks cannot share");
  show_head_rule(lesson);
  if (!lesson.measures(problem.q.seq)) return lesson.finish(showed);
  lesson.heading("What is exposed: 8 ranks on a simulated link");
  show_simulated_link(lesson, comm);
  lesson.heading("What is exposed: this job");
  show_this_job(lesson, comm, problem, ulysses);
  return lesson.finish(showed);
}

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) { return ulysses_lesson(argc, argv, comm); });
}
