// Each __syncthreads of the kernels in lessons is needed.

#include "../../lessons/03_blockwise_attention/gpu/blockwise_attention.hpp"
#include "../../lessons/07_backward/gpu/backward.hpp"
#include "cuda/cuda_runs.hpp"
#include "cuda/needed_barriers.hpp"

namespace ring_attention::test {
namespace {

TEST(LessonBarriers, OfTheForwardAreNeeded) {
  const GradientProblem<float> problem = make_gradient_problem<float>({.kv_heads = 2,
                                                                       .queries = 150,
                                                                       .keys = 150,
                                                                       .dim = lesson_03::dim,
                                                                       .scoring = {0.125, Mask::causal()}});
  const Problem<float>& p = problem.forward;
  const auto q = cuda::uploaded<float>(p.q, nullptr), k = cuda::uploaded<float>(p.k, nullptr),
             v = cuda::uploaded<float>(p.v, nullptr);
  expect_all_needed("lesson 03", [&](std::uint64_t) {
    cuda::DeviceTensor<float> out(p.q.shape()), lse(p.q.shape().per_row());
    lesson_03::blockwise_attention({q.data(), k.data(), v.data(), out.data(), lse.data(), 2, 150, 0.125F}, {},
                                   nullptr);
    return bool(
        agrees_in(0, {cuda::downloaded(out, nullptr), cuda::downloaded(lse, nullptr)}, p, whole(150)));
  });
}

TEST(LessonBarriers, OfTheBackwardAreNeeded) {
  const GradientProblem<float> problem = make_gradient_problem<float>(
      {.kv_heads = 2, .queries = 150, .keys = 150, .dim = lesson_07::dim, .scoring = {0.2, Mask::causal()}});
  const Problem<float>& p = problem.forward;
  const auto there = [](const Tensor<float>& array) { return cuda::uploaded<float>(array, nullptr); };
  const auto q = there(p.q), k = there(p.k), v = there(p.v), grad_out = there(problem.grad_out),
             out = there(converted<float>(p.want.out)), lse = there(converted<float>(p.want.lse));
  expect_all_needed("lesson 07", [&](std::uint64_t) {
    cuda::DeviceTensor<float> delta(p.q.shape().per_row()), dq(p.q.shape()), dk(p.k.shape()), dv(p.k.shape());
    lesson_07::backward({q.data(), k.data(), v.data(), out.data(), grad_out.data(), lse.data(), delta.data(),
                         dq.data(), dk.data(), dv.data(), 2, 150, 0.2F},
                        {}, nullptr);
    return bool(gradients_agree_in(
        0, {cuda::downloaded(dq, nullptr), cuda::downloaded(dk, nullptr), cuda::downloaded(dv, nullptr)},
        problem));
  });
}

}  // namespace
}  // namespace ring_attention::test
