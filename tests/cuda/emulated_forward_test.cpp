// The tensor-core kernels of the forward on the emulator: their unchanged source on the CPU, with random schedules.

#include <gtest/gtest.h>

#include "cuda/kernel_cases.hpp"
#include "cuda/needed_barriers.hpp"

namespace ring_attention::test {
namespace {

constexpr cuda::DeviceTraits device{90, 3, 227 * 1024};

std::vector<cuda::ForwardKernel> tensor_core_kernels() {
  std::vector<cuda::ForwardKernel> kernels;
  for (const cuda::ForwardKernel& kernel : cuda::forward_kernels())
    if (kernel.number >= 2) kernels.push_back(kernel);
  return kernels;
}

class EmulatedForward : public testing::TestWithParam<cuda::ForwardKernel> {
 protected:
  void SetUp() override { emulator::options() = {}; }
  void TearDown() override { emulator::options() = {}; }

  static testing::AssertionResult agrees(const KernelCase& a) {
    return forward_agrees(
        a, [](const cuda::ForwardTask& task, Type type) { GetParam().launch(task, type, device, nullptr); });
  }
  static bool takes(Type type, Index dim) { return GetParam().takes(device, type, static_cast<int>(dim)); }
  static KernelCase random(Dice& dice, Index index) {
    KernelCase a =
        random_kernel_case(dice, index, {64, 128, 64, 128, 8, 40, 72, 120}, {Type::bf16, Type::fp16});
    if (!takes(a.type, a.what.dim)) a.what.dim = 64;
    emulator::options().seed = a.what.seed;
    return a;
  }
};

TEST_P(EmulatedForward, AgreesWithTheReference) {
  for_each_case(24, [&](Dice& dice, Index index) { EXPECT_TRUE(agrees(random(dice, index))); });
}

// Tensor cores truncate sums. The tolerances hold for the largest error of any of them.
TEST_P(EmulatedForward, AgreesWithTheReferenceWithTruncatedSums) {
  for_each_case(4, [&](Dice& dice, Index index) {
    const KernelCase a = random(dice, index);
    emulator::options().truncated_sums = true;
    EXPECT_TRUE(agrees(a));
  });
}

// Without any one of its barriers and waits a kernel gives wrong numbers or a deadlock.
TEST_P(EmulatedForward, NeedsEveryBarrierAndWait) {
  const auto a_case = [](std::uint64_t seed) {
    Dice dice(static_cast<Index>(seed), 7);
    KernelCase a;
    a.what = {.group = 2, .queries = 150, .keys = 400, .dim = 64, .scoring = {0.2, Mask::causal(250)}};
    if (seed % 3 == 2) {  // many short tiles
      a.what.batch = 3;
      a.what.keys = 60;
    }
    a.shards = {whole(a.what.keys)};
    if (seed % 2 == 1) a.shards = {{{0, 1, 30}, {30, 1, a.what.keys - 30}}};
    a.rows = whole(150);
    emulator::options().seed = dice.bits();
    return a;
  };
  expect_all_needed(GetParam().name, [&](std::uint64_t seed) { return bool(agrees(a_case(seed))); }, 80);
}

INSTANTIATE_TEST_SUITE_P(Kernels, EmulatedForward, testing::ValuesIn(tensor_core_kernels()),
                         [](const auto& instance) {
                           std::string name = instance.param.name;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace ring_attention::test
