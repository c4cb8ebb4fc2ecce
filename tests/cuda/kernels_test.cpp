// Every kernel against the dense reference in double: on a GPU and on the emulator.

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "cuda/cuda_runs.hpp"
#include "support/masks.hpp"

namespace ring_attention::test {
namespace {

using cuda::Type;

bool is_emulated() { return cuda::name_of(0) == "the emulator"; }

/// The number of random cases for each kernel and type. The emulator is slow.
Index cases() { return is_emulated() ? 7 : 40; }

/// `preferred` or another dim that the kernel supports, or 0.
template <class Kernel>
Index dim_for(const Kernel& kernel, Type type, Index preferred) {
  const cuda::DeviceTraits device = cuda::traits_of(cuda::current_device());
  for (const Index dim : {preferred, Index{64}, Index{128}})
    if (kernel.takes(device, type, static_cast<int>(dim))) return dim;
  return 0;
}

/// Calls visit(kernel, T{}) for every kernel and every type that it supports.
template <class Kernels, class Visit>
void for_each_kernel(const Kernels& kernels, Visit visit) {
  for (const auto& kernel : kernels) {
    const auto with = [&]<class T>(T zero) {
      SCOPED_TRACE(std::string(kernel.name) + " in " + cuda::name_of(cuda::type_of<T>));
      if (dim_for(kernel, cuda::type_of<T>, 64) != 0) visit(kernel, zero);
    };
    with(float{});
    with(Bf16{});
    with(Fp16{});
  }
}

/// The keys in one to three pieces, whose ranges have gaps and strides.
std::vector<TokenRanges> random_pieces(Dice& dice, Index keys) {
  const Placement placement(
      dice.of({PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag}), keys,
      static_cast<int>(dice.between(1, 3)));
  std::vector<TokenRanges> pieces;
  for (int rank = placement.ranks() - 1; rank >= 0; --rank) pieces.push_back(placement.ranges(rank));
  return pieces;
}

Case with_dim(Case what, Index dim) {
  what.scoring.scale *= std::sqrt(static_cast<double>(what.dim) / static_cast<double>(dim));
  what.dim = dim;
  return what;
}

struct CaseInPieces {
  Case what;
  Index dim;  // that of `what` is another one
  std::vector<TokenRanges> pieces;
};

CaseInPieces random_case_for(Dice& dice, Index index) {
  const Index dim = dice.of<Index>({1, 5, 24, 32, 64, 80, 96, 128, 200, 256});
  Case what = random_case(dice, index, 3);
  if (what.group == 8) what.batch = 1;
  if (dice.one_in(3)) what.queries = dice.between(60, 140);
  if (dice.one_in(3)) what.keys = dice.between(60, 200);
  return {what, dim, random_pieces(dice, what.keys)};
}

/// Keys that fill every stage of a pipeline several times, in two pieces of two ranges each.
CaseInPieces long_case_for(Dice& dice) {
  Case what{.kv_heads = dice.between(1, 2),
            .group = 1,
            .queries = dice.between(300, 900),
            .keys = dice.between(700, 1500),
            .dim = dice.of<Index>({64, 128}),
            .seed = dice.bits()};
  if (what.kv_heads == 1) what.group = dice.between(1, 2);
  what.scoring.scale = 1 / std::sqrt(static_cast<double>(what.dim));
  if (dice.one_in(2)) what.scoring.mask = Mask::causal(what.keys - what.queries);
  if (dice.one_in(3)) what.scoring.mask.left = dice.between(0, what.keys);
  const Placement pieces(PlacementKind::zigzag, what.keys, 2);
  return {what, what.dim, {pieces.ranges(1), pieces.ranges(0)}};
}

/// A persistent kernel has three multiprocessors, so its blocks compute many tiles one after the other.
CudaOptions with_three_multiprocessors(const char* kernel, StreamHandle stream) {
  const int all = cuda::traits_of(cuda::current_device()).multiprocessors;
  return {.stream = stream, .kernel = kernel, .reserved_sms = all - 3};
}

/// One case on every kernel and every type that it supports: visit(kernel, T{}, problem). The problem and its reference are
/// made once for all kernels of a type and a dim, by make(case, T{}).
template <class Kernels>
void for_each_kernel_on(const CaseInPieces& a, const Kernels& kernels, auto make, auto visit) {
  const auto with = [&]<class T>(T zero) {
    std::map<Index, decltype(make(a.what, zero))> problems;  // of each dim
    for (const auto& kernel : kernels) {
      const Index dim = dim_for(kernel, cuda::type_of<T>, a.dim);
      if (dim == 0) continue;
      SCOPED_TRACE(std::string(kernel.name) + " in " + cuda::name_of(cuda::type_of<T>));
      if (!problems.contains(dim)) problems.emplace(dim, make(with_dim(a.what, dim), zero));
      visit(kernel, zero, problems.at(dim));
    }
  };
  with(float{});
  with(Bf16{});
  with(Fp16{});
}

void expect_right_forwards(const CaseInPieces& a, auto options_of, StreamHandle stream) {
  for_each_kernel_on(
      a, cuda::forward_kernels(),
      [&]<class T>(const Case& what, T) { return forward_problem_in<T>(what, stream); },
      [&]<class T>(const cuda::ForwardKernel& kernel, T, const Problem<float>& problem) {
        const TokenRanges rows = whole(problem.what.queries);
        const CudaOptions options = options_of(kernel.name, stream);
        EXPECT_TRUE(
            agrees_in(unit_of<T>, forward_in_pieces<T>(problem, a.pieces, options, rows), problem, rows));
      });
}

void expect_right_backwards(const CaseInPieces& a, auto options_of, StreamHandle stream) {
  for_each_kernel_on(
      a, cuda::backward_kernels(), [&]<class T>(const Case& what, T) { return problem_in<T>(what, stream); },
      [&]<class T>(const cuda::BackwardKernel& kernel, T, const GradientProblem<float>& problem) {
        const CudaOptions options = options_of(kernel.name, stream);
        EXPECT_TRUE(
            gradients_agree_in(unit_of<T>, backward_in_pieces<T>(problem, a.pieces, options), problem));
      });
}

CudaOptions with_all_multiprocessors(const char* kernel, StreamHandle stream) {
  return {.stream = stream, .kernel = kernel};
}

TEST(ForwardKernels, AgreeWithTheReferenceOnRandomProblems) {
  const cuda::Stream stream;
  for_each_case(cases(), [&](Dice& dice, Index index) {
    expect_right_forwards(random_case_for(dice, index), with_all_multiprocessors, stream.handle());
  });
}

TEST(ForwardKernels, AgreeWithTheReferenceOnLongProblems) {
  if (is_emulated()) GTEST_SKIP() << "the emulator is too slow";
  const cuda::Stream stream;
  for_each_case(6, [&](Dice& dice, Index) {
    expect_right_forwards(long_case_for(dice), with_three_multiprocessors, stream.handle());
  });
}

TEST(ForwardKernels, SupportEveryMaskAndBias) {
  const cuda::Stream stream;
  for_each_kernel(cuda::forward_kernels(), [&]<class T>(const cuda::ForwardKernel& kernel, T) {
    if (is_emulated() && cuda::type_of<T> == Type::fp16) return;
    for (const auto& [queries, keys] : {std::pair<Index, Index>{150, 150}, {70, 130}})
      for (const NamedScoring& named : every_scoring(queries, keys, 2, 0.3)) {
        SCOPED_TRACE(named.name);
        const auto problem = forward_problem_in<T>({.kv_heads = 1,
                                                    .group = 2,
                                                    .queries = queries,
                                                    .keys = keys,
                                                    .dim = dim_for(kernel, cuda::type_of<T>, 32),
                                                    .scoring = named.scoring},
                                                   stream.handle());
        const std::vector<TokenRanges> striped{{{1, 2, keys / 2}}, {{0, 2, keys - keys / 2}}};
        EXPECT_TRUE(agrees_in(
            unit_of<T>,
            forward_in_pieces<T>(problem, striped, {.stream = stream.handle(), .kernel = kernel.name},
                                 whole(queries)),
            problem, whole(queries)));
      }
  });
}

TEST(ForwardKernels, AcceptQueriesAtAnyPositions) {
  const cuda::Stream stream;
  for_each_kernel(cuda::forward_kernels(), [&]<class T>(const cuda::ForwardKernel& kernel, T) {
    const auto problem = problem_in<T>({.queries = 120,
                                        .keys = 120,
                                        .dim = dim_for(kernel, cuda::type_of<T>, 32),
                                        .scoring = {0.2, Mask::causal()}},
                                       stream.handle());
    for (const TokenRanges& rows :
         {TokenRanges{{0, 3, 40}}, TokenRanges{{0, 1, 20}, {100, 1, 20}}, TokenRanges{}})
      EXPECT_TRUE(agrees_in(unit_of<T>,
                            forward_in_pieces<T>(problem.forward, {whole(120)},
                                                 {.stream = stream.handle(), .kernel = kernel.name}, rows),
                            problem.forward, rows));
  });
}

TEST(ForwardKernels, AutoUsesAndNamesTheBestKernel) {
  const cuda::Stream stream;
  const auto compare_with_reference = [&]<class T>(T) {
    SCOPED_TRACE(cuda::name_of(cuda::type_of<T>));
    const auto problem =
        problem_in<T>({.group = 2, .queries = 70, .keys = 90, .dim = 64, .scoring = {0.2, Mask::causal(20)}},
                      stream.handle());
    const Problem<float>& p = problem.forward;
    const auto q = cuda::uploaded<T>(p.q, stream.handle()), k = cuda::uploaded<T>(p.k, stream.handle()),
               v = cuda::uploaded<T>(p.v, stream.handle());
    const auto grad_out = cuda::uploaded<T>(problem.grad_out, stream.handle());
    const cuda::DeviceTraits device = cuda::traits_of(cuda::current_device());
    const CudaOptions options{.stream = stream.handle()};

    const DeviceAttentionResult attended = attention_forward<T>(q, k, v, p.what.scoring, options);
    EXPECT_STREQ(attended.kernel, cuda::choose_forward("auto", device, cuda::type_of<T>, 64).name);
    EXPECT_TRUE(agrees_in(unit_of<T>, downloaded(attended, stream.handle()), p, whole(70)));

    const DeviceGradients got =
        attention_backward<T>({q, attended.out, attended.lse, grad_out}, k, v, p.what.scoring, options);
    EXPECT_STREQ(got.kernel, cuda::choose_backward("auto", device, cuda::type_of<T>, 64).name);
    const auto here = [&](const auto& array) { return cuda::downloaded(array, stream.handle()); };
    // The forward's out and lse have rounding errors of T, too.
    EXPECT_TRUE(gradients_agree_in(2 * unit_of<T>, {here(got.q), here(got.k), here(got.v)}, problem));
  };
  compare_with_reference(float{});
  compare_with_reference(Bf16{});
  compare_with_reference(Fp16{});
}

/// A kernel with a fresh state does not read the outputs, and writes all of them.
TEST(ForwardKernels, OverwriteAFreshState) {
  const cuda::Stream stream;
  const StreamHandle handle = stream.handle();
  for_each_kernel(cuda::forward_kernels(), [&]<class T>(const cuda::ForwardKernel& kernel, T) {
    // The first queries see no key.
    const auto problem = problem_in<T>({.queries = 100,
                                        .keys = 40,
                                        .dim = dim_for(kernel, cuda::type_of<T>, 32),
                                        .scoring = {0.2, Mask::causal(40 - 100)}},
                                       handle);
    const Problem<float>& p = problem.forward;
    const auto q = cuda::uploaded<T>(p.q, handle), k = cuda::uploaded<T>(p.k, handle),
               v = cuda::uploaded<T>(p.v, handle);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    auto o = cuda::uploaded<float>(Tensor<float>(p.q.shape(), nan), handle);
    auto m = cuda::uploaded<float>(Tensor<float>(p.q.shape().per_row(), nan), handle);
    auto l = cuda::uploaded<float>(Tensor<float>(p.q.shape().per_row(), nan), handle);
    const cuda::MaskOnDevice mask(p.what.scoring, whole(100), handle);
    cuda::for_each_launch<cuda::ForwardTask>(
        {cuda::task_of(q.shape(), q.data(), p.what.scoring, mask), true, o.data(), m.data(), l.data()}, 1,
        k.shape(), k.data(), v.data(), whole(40), [&](const cuda::ForwardTask& task, int) {
          kernel.launch(task, cuda::type_of<T>, cuda::traits_of(cuda::current_device()), handle);
        });
    for (const auto* array : {&o, &m, &l}) {
      const Tensor<float> host = cuda::downloaded(*array, handle);
      EXPECT_TRUE(std::ranges::none_of(host.view().elements(), [](float x) { return std::isnan(x); }));
    }
  });
}

TEST(ForwardKernels, HaveTheReadableStateAfterEachPiece) {
  const cuda::Stream stream;
  for_each_kernel(cuda::forward_kernels(), [&]<class T>(const cuda::ForwardKernel& kernel, T) {
    const auto problem = problem_in<T>({.queries = 50,
                                        .keys = 60,
                                        .dim = dim_for(kernel, cuda::type_of<T>, 32),
                                        .scoring = {0.2, Mask::causal(10)}},
                                       stream.handle());
    const Problem<float>& p = problem.forward;
    CudaEngine<T> engine(p.what.scoring, {.stream = stream.handle(), .kernel = kernel.name});
    BlockwiseEngine<float> readable(p.what.scoring, 16);
    const auto q = cuda::uploaded<T>(p.q, stream.handle());
    engine.begin(q, whole(50));
    readable.begin(p.q, whole(50));
    for (const TokenRanges& piece : {TokenRanges{{30, 1, 30}}, TokenRanges{{0, 1, 30}}}) {
      const Tensor<float> k = rows_of(p.k, piece), v = rows_of(p.v, piece);
      const auto k_there = cuda::uploaded<T>(k, stream.handle()),
                 v_there = cuda::uploaded<T>(v, stream.handle());
      engine.accumulate({k_there, v_there, piece});
      readable.accumulate({k, v, piece});
      const Partial<float> got = engine.to_partial();
      const Tensor<double> want = converted<double>(readable.to_partial().m);
      EXPECT_TRUE(compare(got.m, want, {1e-4, 1e-5}, {.allow_negative_infinity = true}).ok);
    }
  });
}

/// The checks above can fail: results with a mask that is off by one key do not agree.
TEST(ForwardKernels, DoNotAgreeWithAWrongMask) {
  const cuda::Stream stream;
  for_each_kernel(cuda::forward_kernels(), [&]<class T>(const cuda::ForwardKernel& kernel, T) {
    for (const Index shift : {-1, 1}) {
      auto problem = problem_in<T>({.queries = 50,
                                    .keys = 60,
                                    .dim = dim_for(kernel, cuda::type_of<T>, 32),
                                    .scoring = {0.2, Mask::causal(10)}},
                                   stream.handle());
      problem.forward.what.scoring.mask.offset += shift;
      EXPECT_FALSE(
          agrees_in(unit_of<T>,
                    forward_in_pieces<T>(problem.forward, {whole(60)},
                                         {.stream = stream.handle(), .kernel = kernel.name}, whole(50)),
                    problem.forward, whole(50)));
    }
  });
}

/// The same for the backward: with another lse, and with delta = 0.
TEST(BackwardKernels, DoNotAgreeWithWrongStatistics) {
  const cuda::Stream stream;
  for_each_kernel(cuda::backward_kernels(), [&]<class T>(const cuda::BackwardKernel& kernel, T) {
    for (const bool wrong_lse : {true, false}) {
      auto problem = problem_in<T>({.queries = 50,
                                    .keys = 60,
                                    .dim = dim_for(kernel, cuda::type_of<T>, 32),
                                    .scoring = {0.2, Mask::causal(10)}},
                                   stream.handle());
      if (wrong_lse)
        for (double& lse : problem.forward.want.lse.view().elements()) lse += 0.1;
      else
        problem.forward.want.out.fill(0);
      EXPECT_FALSE(gradients_agree_in(
          unit_of<T>,
          backward_in_pieces<T>(problem, {whole(60)}, {.stream = stream.handle(), .kernel = kernel.name}),
          problem));
    }
  });
}

/// The check itself: it fails for one gradient times 0.97 in half precision, and 0.999 in float.
TEST(BackwardKernels, DoNotAgreeWithAGradientTimesAFactor) {
  const auto problem = make_gradient_problem<float>({.kv_heads = 2,
                                                     .group = 2,
                                                     .queries = 70,
                                                     .keys = 90,
                                                     .dim = 32,
                                                     .scoring = {0.2, Mask::causal(20)},
                                                     .bias_batch = 1,
                                                     .bias_heads = 4});
  const auto gradients = [&] {
    return std::array{converted<float>(problem.want.q), converted<float>(problem.want.k),
                      converted<float>(problem.want.v), converted<float>(problem.want.bias)};
  };
  const auto agree = [](double unit, std::array<Tensor<float>, 4> of, const auto& with) {
    auto& [q, k, v, bias] = of;
    return gradients_agree_in(unit, {std::move(q), std::move(k), std::move(v), {{std::move(bias)}}}, with);
  };
  for (const auto& [unit, factor] :
       {std::pair{unit_of<Bf16>, 0.97F}, {unit_of<Fp16>, 0.97F}, {unit_of<float>, 0.999F}}) {
    EXPECT_TRUE(agree(unit, gradients(), problem));
    for (std::size_t which = 0; which < 4; ++which) {
      auto wrong = gradients();
      for (float& x : wrong[which].view().elements()) x *= factor;
      EXPECT_FALSE(agree(unit, std::move(wrong), problem)) << which << ", " << unit;
    }
  }
}

TEST(BackwardKernels, AgreeWithTheReferenceOnRandomProblems) {
  const cuda::Stream stream;
  for_each_case(cases(), [&](Dice& dice, Index index) {
    expect_right_backwards(random_case_for(dice, index), with_all_multiprocessors, stream.handle());
  });
}

TEST(BackwardKernels, AgreeWithTheReferenceOnLongProblems) {
  if (is_emulated()) GTEST_SKIP() << "the emulator is too slow";
  const cuda::Stream stream;
  for_each_case(6, [&](Dice& dice, Index) {
    expect_right_backwards(long_case_for(dice), with_three_multiprocessors, stream.handle());
  });
}

TEST(BackwardKernels, SupportEveryMaskAndBias) {
  const cuda::Stream stream;
  for_each_kernel(cuda::backward_kernels(), [&]<class T>(const cuda::BackwardKernel& kernel, T) {
    if (is_emulated() && cuda::type_of<T> == Type::fp16) return;
    for (const NamedScoring& named : every_scoring(70, 90, 2, 0.3)) {
      SCOPED_TRACE(named.name);
      const auto problem = problem_in<T>({.kv_heads = 1,
                                          .group = 2,
                                          .queries = 70,
                                          .keys = 90,
                                          .dim = dim_for(kernel, cuda::type_of<T>, 32),
                                          .scoring = named.scoring},
                                         stream.handle());
      EXPECT_TRUE(
          gradients_agree_in(unit_of<T>,
                             backward_in_pieces<T>(problem, {{{1, 2, 45}}, {{0, 2, 45}}},
                                                   {.stream = stream.handle(), .kernel = kernel.name}),
                             problem));
    }
  });
}

TEST(BackwardKernels, GiveTheSameBitsEveryTimeIfDeterministic) {
  const cuda::Stream stream;
  for_each_kernel(cuda::backward_kernels(), [&]<class T>(const cuda::BackwardKernel& kernel, T) {
    if (!kernel.deterministic) return;
    const auto problem =
        problem_in<T>({.group = 2, .queries = 150, .keys = 150, .dim = dim_for(kernel, cuda::type_of<T>, 32)},
                      stream.handle());
    const auto once = [&] {
      return backward_in_pieces<T>(problem, {whole(150)}, {.stream = stream.handle(), .kernel = kernel.name});
    };
    const Gradients<float> first = once(), second = once();
    EXPECT_TRUE(bitwise_equal(first.q, second.q) && bitwise_equal(first.k, second.k) &&
                bitwise_equal(first.v, second.v));
  });
}

/// Kernels add the length of a tile to an int. Too many tokens are an error, before any memory is allocated for them.
TEST(Tasks, WithTooManyTokensAreErrors) {
  const Index most = std::numeric_limits<int>::max() - Index{1024};
  int launches = 0;
  const auto launch = [&](Index keys) {
    cuda::for_each_launch<cuda::ForwardTask>({}, 1, {1, 1, keys, 8}, nullptr, nullptr, whole(keys),
                                             [&](const cuda::ForwardTask& task, int) {
                                               EXPECT_EQ(task.keys, keys);
                                               ++launches;
                                             });
  };
  const auto queries = [](Index count) {
    return cuda::task_of({1, 1, count, 8}, nullptr, {}, cuda::MaskOnDevice()).queries;
  };
  launch(most);
  EXPECT_EQ(launches, 1);
  EXPECT_EQ(queries(most), most);
  EXPECT_THROW(launch(most + 1), Error);
  EXPECT_THROW((void)queries(most + 1), Error);
  EXPECT_THROW(launch((Index{1} << 32U) + 5), Error);
  EXPECT_EQ(launches, 1);
}

TEST(Choice, ErrorsNameTheSupportedKernels) {
  const cuda::DeviceTraits device = cuda::traits_of(cuda::current_device());
  EXPECT_STREQ(cuda::choose_forward("tiled", device, Type::fp32, 64).name, "tiled");
  EXPECT_TRUE(cuda::choose_backward("auto", device, Type::bf16, 128).deterministic);
  const auto message = [&](const std::string& name, int dim) {
    try {
      (void)cuda::choose_forward(name, device, Type::fp32, dim);
    } catch (const InputError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_NE(message("tield", 64).find("naive, tiled"), std::string::npos) << message("tield", 64);
  EXPECT_NE(message("tiled", 300).find("these do: naive"), std::string::npos) << message("tiled", 300);
}

}  // namespace
}  // namespace ring_attention::test
