// Bias and dropout in the fast engines, in addition to ../conformance.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "support/run.hpp"

namespace ring_attention::test {
namespace {

template <class T>
class CpuBiasDropout : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(CpuBiasDropout, Types);

// With one KV head each thread would take a batch, and both would add to the same rows of dbias. The first thread waits
// after its first tiles: then it would be the last to add to the next ones, and their bits would be others.
TYPED_TEST(CpuBiasDropout, ThreadsDoNotShareRowsOfABiasThatBroadcasts) {
  for (const auto& [batches, heads] : {std::pair<Index, Index>{1, 4}, {1, 1}, {3, 1}}) {
    const auto problem = make_gradient_problem<TypeParam>({.batch = 3,
                                                           .kv_heads = 1,
                                                           .group = 4,
                                                           .queries = 70,
                                                           .keys = 70,
                                                           .scoring = {.scale = 0.3},
                                                           .bias_batch = batches,
                                                           .bias_heads = heads});
    const Problem<TypeParam>& p = problem.forward;
    const AttentionResult<TypeParam> result = single_device(problem).attended;
    const auto bias_gradient = [&](int threads, const Progress& progress) {
      CpuBackward<TypeParam> engine(p.what.scoring, {.threads = threads});
      engine.begin({p.q, result.out, result.lse, problem.grad_out, p.bias}, whole(70));
      Tensor<TypeParam> grad_k(p.k.shape()), grad_v(p.v.shape());
      engine.accumulate({p.k, p.v, whole(70)}, {grad_k, grad_v}, progress);
      return engine.term_gradients().bias;
    };
    int tiles = 0;
    const auto wait = [&] {
      if (tiles++ < 5) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
    const Tensor<TypeParam> alone = bias_gradient(1, {});
    EXPECT_TRUE(grad_bias_agrees(alone, problem));
    EXPECT_TRUE(bitwise_equal(bias_gradient(2, wait), alone)) << batches << " x " << heads;
  }
}

TYPED_TEST(CpuBiasDropout, OfProbabilityZeroHasTheSameBitsAsNone) {
  auto problem = make_gradient_problem<TypeParam>(with_everything({1, 1}, {0.3}, 0));
  const Whole<TypeParam> with = single_device(problem);
  problem.forward.what.scoring.dropout = {};
  EXPECT_TRUE(same_bits<TypeParam>(single_device(problem), with));
}

}  // namespace
}  // namespace ring_attention::test
