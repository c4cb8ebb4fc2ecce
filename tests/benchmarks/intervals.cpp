// What a second interval of keys costs: the fast engines with a window, without and with 64 sink tokens, in turn, on one
// thread. Prints a table of Markdown: medians of time with over time without, one head; beside it the pairs that are
// seen with over those without. Time over pairs is at most 1.10.

#include <cmath>
#include <cstdio>

#include "benchmarks/in_turn.hpp"
#include "ring_attention/attention/mask_sets.hpp"
#include "ring_attention/attention/visible_pairs.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/cpu/backward.hpp"

namespace ring_attention {
namespace {

void print_rows(Index tokens, Index window) {
  const Shape shape{1, 1, tokens, 64};
  Tensor<float> q(shape), k(shape), v(shape), grad_out(shape), grad_k(shape), grad_v(shape);
  std::uint64_t stream = 0;
  for (Tensor<float>* array : {&q, &k, &v, &grad_out}) fill_random(array->view(), {.stream = stream++});
  Scoring one{.scale = 1 / std::sqrt(64.0), .mask = {.left = window - 1, .right = 0}}, two = one;
  two.mask.sets = std::make_shared<const MaskSets>(MaskSets::Sets{.sink_tokens = 64});
  const auto forward = [&](const Scoring& scoring) { return attention_forward<float>(q, k, v, scoring); };
  const auto backward = [&](const Scoring& scoring, const AttentionResult<float>& of) {
    CpuBackward<float> engine(scoring);
    engine.begin({q, of.out, of.lse, grad_out}, whole(tokens));
    engine.accumulate({k, v, whole(tokens)}, {grad_k, grad_v});
    (void)engine.finish();
  };
  const AttentionResult<float> of_one = forward(one), of_two = forward(two);
  const double pairs = static_cast<double>(visible_pairs(two.mask, whole(tokens), whole(tokens))) /
                       static_cast<double>(visible_pairs(one.mask, whole(tokens), whole(tokens)));
  const double of_forward = median_ratio([&] { (void)forward(two); }, [&] { (void)forward(one); });
  const double of_backward = median_ratio([&] { backward(two, of_two); }, [&] { backward(one, of_one); });
  for (const auto& [pass, time] : {std::pair("forward", of_forward), std::pair("backward", of_backward)})
    std::printf("| %s, %d tokens, window %d | %.3f | %.3f | %.3f |\n", pass, static_cast<int>(tokens),
                static_cast<int>(window), time, pairs, time / pairs);
}

}  // namespace
}  // namespace ring_attention

int main() {
  std::printf("| with 64 sink tokens over without | time | pairs | time over pairs |\n|---|---|---|---|\n");
  for (const ring_attention::Index tokens : {4096, 16384})
    for (const ring_attention::Index window : {1024, 4096}) ring_attention::print_rows(tokens, window);
}
