// The last launch of a forward computes out and lse: the same bits as finish_rows after it.

#include <gtest/gtest.h>

#include "cuda/cuda_runs.hpp"

namespace ring_attention::test {
namespace {

using Keys = std::vector<TokenRanges>;

template <class T>
void expect_same_bits(Index dim, cuda::StreamHandle stream) {
  // The first queries see no key. A piece of three ranges is two launches, and the last piece may be empty.
  const auto problem =
      problem_in<T>({.queries = 70, .keys = 70, .dim = dim, .scoring = {0.2, Mask::causal(-10)}}, stream);
  const TokenRanges three{{20, 1, 10}, {30, 2, 20}, {31, 2, 20}};
  for (const Keys& pieces : {Keys{{{0, 1, 20}}, three}, Keys{whole(70), {}}})
    for (const cuda::ForwardKernel& kernel : cuda::forward_kernels()) {
      if (!kernel.takes(cuda::traits_of(cuda::current_device()), cuda::type_of<T>, static_cast<int>(dim)))
        continue;
      const CudaOptions options{.stream = stream, .kernel = kernel.name};
      CudaOptions with_last = options;
      with_last.pieces = static_cast<int>(pieces.size());
      EXPECT_TRUE(same_bits(forward_in_pieces<T>(problem.forward, pieces, with_last, whole(70)),
                            forward_in_pieces<T>(problem.forward, pieces, options, whole(70))))
          << kernel.name;
    }
}

TEST(LastLaunch, GivesTheBitsOfFinishRows) {
  const cuda::Stream stream;
  expect_same_bits<float>(64, stream.handle());
  expect_same_bits<Bf16>(128, stream.handle());
}

TEST(LastLaunch, EndsTheWorkOfAnEngine) {
  const cuda::Stream stream;
  const auto problem = problem_in<float>({.queries = 10, .keys = 10, .dim = 8}, stream.handle());
  CudaEngine<float> engine(problem.forward.what.scoring, {.stream = stream.handle(), .pieces = 1});
  const auto q = cuda::uploaded<float>(problem.forward.q, stream.handle()),
             k = cuda::uploaded<float>(problem.forward.k, stream.handle());
  engine.begin(q, whole(10));
  engine.accumulate({k, k, whole(10)});
  EXPECT_THROW(engine.accumulate({k, k, whole(10)}), Error);
  EXPECT_THROW((void)engine.to_partial(), Error);
  (void)engine.finish();
  engine.begin(q, whole(10));
  engine.accumulate({k, k, whole(10)});
  (void)engine.finish();
}

}  // namespace
}  // namespace ring_attention::test
