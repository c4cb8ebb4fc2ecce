// Lesson 16, beside the idea: what exact sums cost in time, memory and bytes.
#pragma once

#include <chrono>

#include "cli/median.hpp"
#include "library.hpp"
#include "ring_attention/cpu/exact/backward.hpp"
#include "ring_attention/cpu/exact/forward.hpp"

namespace ring_attention::lesson_16 {

struct Seconds {
  double forward, backward;
};

/// One head of 64 on one thread. \param tile  0: the usual engines
inline Seconds time_of(const RandomProblem& problem, Index tile_size) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto since = [&](auto begin) { return std::chrono::duration<double>(now() - begin).count(); };
  const TokenRanges all = whole(problem.q.seq);
  const Tensor<float> q = problem.queries<float>(all), k = problem.keys<float>(), v = problem.values<float>(),
                      grad_out = problem.make<float>(problem.q, 3, all);
  const CpuOptions options{1, best_isa(), tile_size};
  const auto run = [&](auto engine, auto backward, Index words) {
    const KeyValue<float> kv{k, v, all};
    Tensor<float> grad_k(Shape{1, 1, problem.kv.seq, words}), grad_v(grad_k.shape());
    auto begin = now();
    engine.begin(q, all);
    engine.accumulate(kv);
    const AttentionResult<float> forward = engine.finish();
    const double seconds = since(begin);
    begin = now();
    backward.begin({q, forward.out, forward.lse, grad_out}, all);
    backward.accumulate(kv, {grad_k, grad_v});
    (void)backward.finish();
    return Seconds{seconds, since(begin)};
  };
  if (tile_size == 0)
    return run(CpuEngine<float>(problem.scoring, options), CpuBackward<float>(problem.scoring, options),
               problem.kv.dim);
  return run(SameBitsEngine(problem.scoring, options), SameBitsBackward(problem.scoring, options),
             ExactFormat{problem.kv.dim}.words());
}

/// Time with exact sums over time without, of pairs that run one after the other.
inline void show_time(Lesson& lesson, Index seq) {
  const RandomProblem problem{{1, 1, seq, 64}, {1, 1, seq, 64}, {default_scale(64), {}}, lesson.seed()};
  Table table({"tile", "forward, time / usual", "backward, time / usual"});
  for (const Index size : {128, 256, 512}) {
    std::vector<double> forward, backward;
    for (int pair = 0; pair < 5; ++pair) {
      const Seconds usual = time_of(problem, 0), exact = time_of(problem, size);
      forward.push_back(exact.forward / usual.forward);
      backward.push_back(exact.backward / usual.backward);
    }
    table.row({std::to_string(size), format("%.2f", median(forward)), format("%.2f", median(backward))});
  }
  lesson.say(format("  %d tokens, D = 64, one head, one thread, medians of 5 pairs", static_cast<int>(seq)));
  lesson.print("times", table);
}

inline void show_cost(Lesson& lesson, Index seq) {
  // Shards of 128 tokens, with tiles and without.
  const RandomProblem problem{{1, 1, 512, 64}, {1, 1, 512, 64}, {default_scale(64), {}}, lesson.seed()};
  const Arrays usual = run_library(problem, 4, PlacementKind::contiguous, 0),
               exact = run_library(problem, 4, PlacementKind::contiguous, 32);
  Table table({"a backward ring of 4, 512 tokens, D = 64", "usual", "exact sums", "times"});
  const auto line = [&](const std::string& what, Index before, Index after) {
    table.row({what, human_bytes(before), human_bytes(after),
               format("%.2f", static_cast<double>(after) / static_cast<double>(before))});
  };
  line("K,V, sent by a rank", usual.kv_bytes, exact.kv_bytes);
  line("dK,dV, sent by a rank", usual.gradient_bytes, exact.gradient_bytes);
  const Index state = 4 * (ExactFormat{64}.words() + ExactFormat{1}.words()),
              usual_state = Index{4} * (64 + 2);
  line("the state of a query", usual_state, state);
  lesson.print("cost", table);
  lesson.check("K,V travel as ever", exact.kv_bytes == usual.kv_bytes);
  lesson.check("a row of dK or dV travels as 2 D + 2 words, not D",
               exact.gradient_bytes * 64 == usual.gradient_bytes * (2 * 64 + 2));
  if (lesson.measures(seq)) show_time(lesson, seq);
}

}  // namespace ring_attention::lesson_16
