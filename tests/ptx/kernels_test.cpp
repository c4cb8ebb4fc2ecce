// Kernels of the compiled PTX against the dense reference. PTX_KERNELS names those that this program has as PTX:
// "forward NAME" and "backward NAME", separated by commas. Numbers of another seed: PTX_SEED, of the interpreter.

#include <gtest/gtest.h>

#include <cstdlib>

#include "cuda/cuda_runs.hpp"

namespace ring_attention::test {
namespace {

using cuda::Type;

bool is_named(const std::string& direction, const char* kernel) {
  const char* names = std::getenv("PTX_KERNELS");
  return names == nullptr ||
         ("," + std::string(names) + ",").find("," + direction + " " + kernel + ",") != std::string::npos;
}

/// Two pieces of two ranges each: the tiles of a launch begin anywhere.
std::vector<TokenRanges> zigzag(Index keys) {
  const Placement placement(PlacementKind::zigzag, keys, 2);
  return {placement.ranges(1), placement.ranges(0)};
}

struct NamedCase {
  const char* name;
  Case what;
  std::vector<TokenRanges> pieces;
};

std::vector<NamedCase> cases() {
  const auto scale = [](Index dim) { return 1 / std::sqrt(static_cast<double>(dim)); };
  Mask window = Mask::causal(150 - 70);
  window.left = 50;
  return {{"grouped heads, causal, dim 64",
           {.group = 2, .queries = 140, .keys = 140, .dim = 64, .scoring = {scale(64), Mask::causal()}},
           {whole(140)}},
          {"causal, dim 128, zigzag, every stage of a pipeline twice",
           {.queries = 70, .keys = 700, .dim = 128, .scoring = {scale(128), Mask::causal(630)}},
           zigzag(700)},
          {"a causal window, dim 72, zigzag",
           {.queries = 70, .keys = 150, .dim = 72, .scoring = {scale(72), window}},
           zigzag(150)}};
}

/// Calls visit(kernel, T{}, case) for all named kernels that take the case.
template <class Kernels>
void for_each_run(const char* direction, const Kernels& kernels, auto visit) {
  int runs = 0;
  const cuda::DeviceTraits device = cuda::traits_of(cuda::current_device());
  for (const auto& kernel : kernels) {
    if (!is_named(direction, kernel.name)) continue;
    for (const NamedCase& one : cases()) {
      const auto with = [&]<class T>(T zero) {
        if (!kernel.takes(device, cuda::type_of<T>, static_cast<int>(one.what.dim))) return;
        SCOPED_TRACE(std::string(kernel.name) + " in " + cuda::name_of(cuda::type_of<T>) + ", " + one.name);
        visit(kernel, zero, one);
        ++runs;
      };
      with(Bf16{});
      with(Fp16{});
      if (kernel.takes(device, Type::fp32, 64)) with(float{});
    }
  }
  EXPECT_GT(runs, 0) << "no kernel of PTX_KERNELS was run";
}

TEST(CompiledForward, AgreesWithTheReference) {
  const cuda::Stream stream;
  for_each_run("forward", cuda::forward_kernels(), [&]<class T>(const auto& kernel, T, const NamedCase& one) {
    const auto problem = forward_problem_in<T>(one.what, stream.handle());
    const TokenRanges rows = whole(one.what.queries);
    EXPECT_TRUE(agrees_in(
        unit_of<T>,
        forward_in_pieces<T>(problem, one.pieces, {.stream = stream.handle(), .kernel = kernel.name}, rows),
        problem, rows));
  });
}

TEST(CompiledBackward, AgreesWithTheReference) {
  const cuda::Stream stream;
  for_each_run(
      "backward", cuda::backward_kernels(), [&]<class T>(const auto& kernel, T, const NamedCase& one) {
        const auto problem = problem_in<T>(one.what, stream.handle());
        EXPECT_TRUE(gradients_agree_in(
            unit_of<T>,
            backward_in_pieces<T>(problem, one.pieces, {.stream = stream.handle(), .kernel = kernel.name}),
            problem));
      });
}

// Many blocks take turns, in two launches.
TEST(CompiledBackward, OrderedAgreesOnALargerProblem) {
  if (!is_named("backward", "wgmma-ordered") ||
      cuda::traits_of(cuda::current_device()).compute_capability < 90)
    GTEST_SKIP() << "the kernel is not in PTX_KERNELS, or needs Hopper";
  const cuda::Stream stream;
  const auto problem = problem_in<Bf16>(
      {.batch = 2, .queries = 600, .keys = 700, .dim = 128, .scoring = {0.09, Mask::causal(100)}},
      stream.handle());
  EXPECT_TRUE(gradients_agree_in(
      unit_of<Bf16>,
      backward_in_pieces<Bf16>(problem, zigzag(700), {.stream = stream.handle(), .kernel = "wgmma-ordered"}),
      problem));
}

}  // namespace
}  // namespace ring_attention::test
