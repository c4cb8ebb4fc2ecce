// What the same bits on any number of ranks cost: engines with exact sums beside the usual ones, in turn, on one thread.
// Prints a table of Markdown: medians of time with over time without, 4096 tokens, one head.

#include <cstdio>

#include "benchmarks/in_turn.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/cpu/exact/backward.hpp"
#include "ring_attention/cpu/exact/forward.hpp"

namespace ring_attention {
namespace {

constexpr Index tokens = 4096;
struct Sizes {
  explicit Sizes(Index dim, bool causal)
      : shape{1, 1, tokens, dim}, q(shape), k(shape), v(shape), dout(shape) {
    std::uint64_t stream = 0;
    for (Tensor<float>* array : {&q, &k, &v, &dout}) fill_random(array->view(), {.stream = stream++});
    scoring.scale = 1 / std::sqrt(static_cast<double>(dim));
    if (causal) scoring.mask = Mask::causal();
  }
  [[nodiscard]] AttentionResult<float> forward(auto engine) const {
    engine.begin(q, whole(tokens));
    engine.accumulate({k, v, whole(tokens)});
    return engine.finish();
  }
  void backward(auto engine, const AttentionResult<float>& of, Index words) const {
    Tensor<float> dk({1, 1, tokens, words}), dv(dk.shape());
    engine.begin({q, of.out, of.lse, dout}, whole(tokens));
    engine.accumulate({k, v, whole(tokens)}, {dk, dv});
    (void)engine.finish();
  }

  Shape shape;
  Tensor<float> q, k, v, dout;
  Scoring scoring;
};

void print_row(Index dim, bool causal) {
  const Sizes problem(dim, causal);
  const AttentionResult<float> usual = problem.forward(CpuEngine<float>(problem.scoring));
  const auto print = [&](const char* pass, const auto& without, const auto& with) {
    std::printf("| %s%s, D = %d |", pass, causal ? ", causal" : "", static_cast<int>(dim));
    for (const Index tile : {128, 256, 512})
      std::printf(" %.2f |", median_ratio([&] { with(CpuOptions{1, best_isa(), tile}); }, without));
    std::printf("\n");
  };
  print(
      "forward", [&] { (void)problem.forward(CpuEngine<float>(problem.scoring)); },
      [&](const CpuOptions& options) { (void)problem.forward(SameBitsEngine(problem.scoring, options)); });
  print(
      "backward", [&] { problem.backward(CpuBackward<float>(problem.scoring), usual, dim); },
      [&](const CpuOptions& options) {
        problem.backward(SameBitsBackward(problem.scoring, options), usual, ExactFormat{dim}.words());
      });
}

}  // namespace
}  // namespace ring_attention

int main() {
  std::printf("| time with over time without | tiles of 128 | of 256 | of 512 |\n|---|---|---|---|\n");
  for (const bool causal : {false, true})
    for (const ring_attention::Index dim : {64, 128}) ring_attention::print_row(dim, causal);
}
