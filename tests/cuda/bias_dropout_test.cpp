// Bias, softcap, dropout and sinks in the kernels that have them: on a GPU and on the emulator.

#include <gtest/gtest.h>

#include <limits>

#include "cuda/cuda_runs.hpp"
#include "support/input_error.hpp"
#include "support/masks.hpp"

namespace ring_attention::test {
namespace {

using cuda::Type;

using Pieces = std::vector<TokenRanges>;
const Pieces in_steps{{{1, 3, 36}}, {{0, 3, 36}, {2, 3, 35}}};  // 107 keys

constexpr std::pair<Index, Index> every_broadcast[] = {{1, 1}, {1, 4}, {2, 1}, {2, 4}};  // batches, heads

cuda::DeviceTraits device() { return cuda::traits_of(cuda::current_device()); }

/// Calls visit(kernel) for every kernel with bias and dropout.
template <class Kernels, class Visit>
void for_each_with_pairs(const Kernels& kernels, Visit visit) {
  int found = 0;
  for (const auto& kernel : kernels) {
    if (kernel.launch_with_pairs == nullptr) continue;
    SCOPED_TRACE(kernel.name);
    visit(kernel);
    ++found;
  }
  EXPECT_EQ(found, 2) << "naive and tiled, or tiled and tiled-atomics";
}

/// Forward and backward in type T, with the keys in steps.
template <class T>
void expect_agreement(const Case& what) {
  const cuda::Stream stream;
  SCOPED_TRACE(to_string(what));
  const auto problem = problem_in<T>(what, stream.handle());
  const TokenRanges rows = whole(what.queries);
  for_each_with_pairs(cuda::forward_kernels(), [&](const cuda::ForwardKernel& kernel) {
    const CudaOptions options{.stream = stream.handle(), .kernel = kernel.name};
    const auto got = forward_in_pieces<T>(problem.forward, in_steps, options, rows);
    EXPECT_TRUE(agrees_in(unit_of<T>, got, problem.forward, rows));
  });
  for_each_with_pairs(cuda::backward_kernels(), [&](const cuda::BackwardKernel& kernel) {
    const CudaOptions options{.stream = stream.handle(), .kernel = kernel.name};
    EXPECT_TRUE(gradients_agree_in(unit_of<T>, backward_in_pieces<T>(problem, in_steps, options), problem));
  });
}

TEST(BiasDropout, AgreeWithTheReferenceUnderEveryMask) {
  constexpr std::pair<Index, Index> extents[] = {{1, 1}, {1, 4}, {2, 1}, {2, 4}, {0, 0}};
  std::size_t i = 0;
  for (const NamedScoring& named : every_scoring(71, 107, 4, 0.3)) {
    SCOPED_TRACE(named.name);
    const double dropout = i % 3 == 0 ? 0.0 : 0.3;
    Case what = with_everything(extents[i % 5], named.scoring, dropout);
    if (i % 2 == 1) what.scoring.softcap = 0.7;
    switch (i++ % 4) {
      case 0: expect_agreement<Bf16>(what); break;
      case 1: expect_agreement<Fp16>(what); break;
      default: expect_agreement<float>(what);
    }
  }
}

TEST(BiasDropout, AgreeWithTheReferenceForEveryBroadcastAndWidth) {
  Index dim = 40;
  for (const auto& extents : every_broadcast) {
    Case what = with_everything(extents, {0.1, Mask::causal(36)}, 0.4);
    what.dim = std::exchange(dim, dim + 70);  // every size of the tiles
    expect_agreement<float>(what);
  }
}

// Value j is 1 in column j and 0 elsewhere: out shows which pairs are kept. So does dV where dO is such an array.
TEST(BiasDropout, TheMaskIsTheFunctionOfPositionsInBothDirections) {
  const cuda::Stream stream;
  for (const Index length : {Index{60}, Index{107}, Index{200}}) {
    Case what{.batch = 2, .queries = length, .keys = length, .dim = length, .scoring = {0.02}};
    what.scoring.dropout = {.probability = 0.4, .seed = 7, .step = 3, .layer = 2};
    auto problem = problem_in<float>(what, stream.handle());
    Problem<float>& p = problem.forward;
    for (Tensor<float>* array : {&p.v, &problem.grad_out}) {
      array->fill(0);
      for (Index batch = 0; batch < 2; ++batch)
        for (Index head = 0; head < 2; ++head)
          for (Index i = 0; i < length; ++i) array->view()(batch, head, i, i) = 1;
    }
    const auto expect_the_mask = [&](View<const float> array, bool rows_are_queries) {
      const Dropout& dropout = what.scoring.dropout;
      for (Index batch = 0; batch < 2; ++batch)
        for (Index head = 0; head < 2; ++head)
          for (Index query = 0; query < length; ++query) {
            const DropoutRow row = dropout.row(batch, head, query);
            for (Index key = 0; key < length; ++key)
              ASSERT_EQ(
                  (rows_are_queries ? array(batch, head, query, key) : array(batch, head, key, query)) != 0,
                  dropout.keeps(row, key))
                  << "query " << query << ", key " << key;
          }
    };
    const Pieces striped{{{1, 3, (length + 1) / 3}}, {{0, 3, (length + 2) / 3}, {2, 3, length / 3}}};
    for_each_with_pairs(cuda::forward_kernels(), [&](const cuda::ForwardKernel& kernel) {
      const CudaOptions options{.stream = stream.handle(), .kernel = kernel.name};
      expect_the_mask(forward_in_pieces<float>(p, striped, options, whole(length)).out.view(), true);
    });
    for_each_with_pairs(cuda::backward_kernels(), [&](const cuda::BackwardKernel& kernel) {
      const CudaOptions options{.stream = stream.handle(), .kernel = kernel.name};
      expect_the_mask(backward_in_pieces<float>(problem, striped, options).v.view(), false);
    });
  }
}

// With all of its keys hidden by a bias a row has out = 0 and lse = -inf, or that of its sink.
TEST(BiasDropout, ARowThatTheBiasHidesSeesNothing) {
  const cuda::Stream stream;
  auto problem = problem_in<float>({.queries = 40, .keys = 50, .dim = 16, .bias_batch = 1, .bias_heads = 1},
                                   stream.handle());
  Problem<float>& p = problem.forward;
  p.bias.fill(0);
  std::ranges::fill(p.bias.view().row(0, 0, 3), negative_infinity<float>);
  problem.forward = make_problem<float>(p.what, p.q.clone(), p.k.clone(), p.v.clone(), p.bias.clone());
  problem.want =
      reference_backward(converted<double>(p.q), converted<double>(p.k), converted<double>(p.v),
                         converted<double>(problem.grad_out), p.what.scoring, converted<double>(p.bias));
  for_each_with_pairs(cuda::forward_kernels(), [&](const cuda::ForwardKernel& kernel) {
    for (const double sink : {negative_infinity<double>, 0.7}) {
      p.what.scoring.sinks = {sink, sink};
      const auto got = forward_in_pieces<float>(
          p, {whole(50)}, {.stream = stream.handle(), .kernel = kernel.name}, whole(40));
      EXPECT_EQ(got.lse.view()(0, 1, 3), static_cast<float>(sink));
      for (const float x : got.out.view().row(0, 1, 3)) EXPECT_EQ(x, 0);
    }
    p.what.scoring.sinks = {};
  });
  for_each_with_pairs(cuda::backward_kernels(), [&](const cuda::BackwardKernel& kernel) {
    const auto got =
        backward_in_pieces<float>(problem, {whole(50)}, {.stream = stream.handle(), .kernel = kernel.name});
    EXPECT_TRUE(gradients_agree_in(0, got, problem));
    for (const float x : got.bias.view().row(0, 0, 3)) EXPECT_EQ(x, 0);
  });
}

TEST(BiasDropout, NaNAndInfinityGiveNaNAndNotAPlausibleNumber) {
  const cuda::Stream stream;
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    auto problem = make_problem<float>({.queries = 20, .keys = 30, .bias_batch = 1, .bias_heads = 2});
    problem.bias.view()(0, 1, 4, 7) = wrong;
    for_each_with_pairs(cuda::forward_kernels(), [&](const cuda::ForwardKernel& kernel) {
      const CudaOptions options{.stream = stream.handle(), .kernel = kernel.name};
      const auto got = forward_in_pieces<float>(problem, {whole(30)}, options, whole(20));
      for (const float x : got.out.view().row(0, 1, 4)) EXPECT_TRUE(std::isnan(x));
      EXPECT_EQ(count_non_finite<float>(got.out.view()).count, 4) << "other rows are as they were";
    });
  }
}

// What the mask hides is not read, and neither is a query behind the last.
TEST(BiasDropout, AMaskHidesANaN) {
  const cuda::Stream stream;
  auto problem = make_problem<float>(
      {.queries = 20, .keys = 30, .scoring = {0.3, Mask::causal(10)}, .bias_batch = 1, .bias_heads = 1});
  for (Index query = 0; query < 20; ++query)
    for (Index key = query + 11; key < 30; ++key)
      problem.bias.view()(0, 0, query, key) = std::numeric_limits<float>::quiet_NaN();
  for_each_with_pairs(cuda::forward_kernels(), [&](const cuda::ForwardKernel& kernel) {
    const CudaOptions options{.stream = stream.handle(), .kernel = kernel.name};
    EXPECT_TRUE(agrees(forward_in_pieces<float>(problem, {whole(30)}, options, whole(20)), problem));
  });
}

TEST(BiasDropout, OfProbabilityZeroTakesTheKernelWithout) {
  const cuda::Stream stream;
  auto problem = problem_in<Bf16>({.queries = 30, .keys = 30, .dim = 64}, stream.handle());
  const auto run = [&] {
    return forward_in_pieces<Bf16>(problem.forward, {whole(30)}, {.stream = stream.handle()}, whole(30));
  };
  const auto without = run();
  problem.forward.what.scoring.dropout = {.probability = 0, .seed = 9};
  EXPECT_TRUE(same_bits(run(), without));
}

TEST(BiasDropout, ABiasOfAnotherShapeIsAnError) {
  const cuda::Stream stream;
  const auto p = make_problem<float>({.batch = 2, .queries = 5, .keys = 6, .dim = 3});
  const auto q = cuda::uploaded<float>(p.q, stream.handle()), k = cuda::uploaded<float>(p.k, stream.handle());
  CudaEngine<float> engine({}, {.stream = stream.handle()});
  for (const Shape& wrong : {Shape{3, 2, 5, 6}, Shape{2, 3, 5, 6}, Shape{2, 2, 4, 6}})
    EXPECT_THROW(engine.begin(q, whole(5), cuda::DeviceTensor<float>(wrong)), Error) << to_string(wrong);
  const cuda::DeviceTensor<float> narrow({2, 2, 5, 5});
  engine.begin(q, whole(5), narrow);
  EXPECT_THROW(engine.accumulate({k, k, whole(6)}), Error) << "no column for the last key";
}

// ---- sinks ---------------------------------------------------------------------------------------------

// Every kernel has sinks: they are added to its result. Some rows see no key.
TEST(Sinks, AgreeWithTheReferenceInEveryKernel) {
  const cuda::Stream stream;
  for (const cuda::ForwardKernel& kernel : cuda::forward_kernels()) {
    SCOPED_TRACE(kernel.name);
    const auto run = [&]<class T>(T) {
      if (!kernel.takes(device(), cuda::type_of<T>, 64)) return;
      Case what{
          .batch = 2, .group = 2, .queries = 70, .keys = 60, .dim = 64, .scoring = {0.2, Mask::causal(-10)}};
      what.scoring.sinks = {0.5, -30, negative_infinity<double>, 30};
      const auto problem = problem_in<T>(what, stream.handle());
      const Problem<float>& p = problem.forward;
      const CudaOptions options{.stream = stream.handle(), .kernel = kernel.name};
      const auto got = forward_in_pieces<T>(p, {{{0, 2, 30}}, {{1, 2, 30}}}, options, whole(70));
      EXPECT_TRUE(agrees_in(unit_of<T>, got, p, whole(70)));
      for (Index head = 0; head < 4; ++head)
        EXPECT_EQ(got.lse.view()(1, head, 9), static_cast<float>(what.scoring.sink(head)));
    };
    run(float{});
    run(Bf16{});
  }
}

TEST(Sinks, AddedTwiceAreNoticed) {
  const cuda::Stream stream;
  Case what{.queries = 20, .keys = 30, .scoring = {0.3}};
  what.scoring.sinks = {0.5, 1};
  const auto p = make_problem<float>(what);
  const auto with = [&](const Tensor<float>& sinks) {
    CudaEngine<float> engine(p.what.scoring, {.stream = stream.handle()});
    const auto q = cuda::uploaded<float>(p.q, stream.handle()),
               k = cuda::uploaded<float>(p.k, stream.handle()),
               v = cuda::uploaded<float>(p.v, stream.handle());
    engine.begin(q, whole(20));
    engine.accumulate({k, v, whole(30)});
    AttentionResult<float> result = engine.finish();
    if (sinks.size() > 0)
      cuda::add_sinks(result.out.data(), result.lse.data(), sinks.data(), p.q.shape(), stream.handle());
    return agrees(downloaded(result, stream.handle()), p);
  };
  EXPECT_TRUE(with({}));
  EXPECT_FALSE(with(cuda::sinks_on_device(what.scoring.sinks, p.q.shape(), stream.handle())));
}

TEST(Sinks, MustBeOneAHead) {
  EXPECT_THROW((void)cuda::sinks_on_device({1, 2, 3}, {1, 2, 5, 4}, nullptr), Error);
}

// ---- the choice of a kernel ----------------------------------------------------------------------------

TEST(Choice, WithBiasOrDropoutIsAKernelThatHasThem) {
  EXPECT_STREQ(cuda::choose_forward("auto", device(), Type::bf16, 64, true).name, "tiled");
  EXPECT_STREQ(cuda::choose_backward("auto", device(), Type::bf16, 64, true).name, "tiled");
  EXPECT_STREQ(cuda::choose_forward("auto", device(), Type::fp32, 300, true).name, "naive");
  const auto forward = [] { (void)cuda::choose_forward("mma", device(), Type::bf16, 64, true); };
  expect_input_error(forward, "mma does not take bf16 with a head dim of 64 and a bias, softcap or dropout");
  expect_input_error(forward, "these do: naive, tiled");
  const auto backward = [] { (void)cuda::choose_backward("mma", device(), Type::bf16, 64, true); };
  expect_input_error(backward, "these do: tiled, tiled-atomics");
  expect_input_error(
      [] { (void)cuda::choose_backward("auto", device(), Type::fp32, 300, true); },
      "no backward kernel of the GPU takes fp32 with a head dim of 300 and a bias, softcap or dropout");
}

}  // namespace
}  // namespace ring_attention::test
