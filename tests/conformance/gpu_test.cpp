// The conformance suite on a GPU, emulated or real: ranks are threads with a stream of their own, and all arrays are in its
// memory.

#include <array>
#include <ranges>

#include "conformance/properties.hpp"
#include "cuda/parallel_runs.hpp"

namespace ring_attention::test {
namespace {

/// The forward's out and lse are those of T's arithmetic, and so are the gradients after it.
template <class T>
testing::AssertionResult agrees_in_type(const TeamRun<float>& got, const GradientProblem<float>& problem) {
  if (auto verdict = agrees_in(unit_of<T>, got.attended, problem.forward, whole(problem.what().queries));
      !verdict)
    return verdict;
  if (auto verdict = gradients_agree_in(2 * unit_of<T>, got.gradients, problem); !verdict) return verdict;
  return numbers_agree(got.gradients, problem, 2 * unit_of<T>);
}

/// q, k, v and dO of type T.
template <class T>
Way<float> gpu_way(const std::string& name, bool staged = false, const GpuKernels& kernels = {}) {
  Way<float> way{name, [=](const Task<float>& task, const Team& team) {
                   return run_on_gpu<T>(task, team, staged, kernels);
                 }};
  way.bytes = bytes_of<T>;
  way.problem_of = [](Case what) {
    what.value_dim = 0;  // what the kernels take
    return problem_in<T>(what, nullptr);
  };
  way.agrees = agrees_in_type<T>;
  return way;
}

/// Parcels go from GPU to GPU, or through the memory of the host.
template <class T>
void add_gpu_ways(std::vector<Way<float>>& ways, const std::string& type) {
  ways.push_back(gpu_way<T>(type + " on a GPU"));
  ways.push_back(gpu_way<T>(type + " on a GPU, staged", true));
  ways.back().same = gpu_way<T>("").run;
}

std::vector<Way<float>> gpu_ways() {
  std::vector<Way<float>> all;
  add_gpu_ways<float>(all, "fp32");
  add_gpu_ways<Bf16>(all, "bf16");
  add_gpu_ways<Fp16>(all, "fp16");
  return all;
}

/// Each kernel that gives the same bits in every run, at the smallest of some widths that it takes. The other direction has
/// the kernel that "auto" chooses.
template <class T>
void add_kernel_ways(std::vector<Way<float>>& ways) {
  const auto add = [&](const auto& kernel, const std::string& direction, const GpuKernels& kernels) {
    const std::array dims{5, 64, 128, 256};
    const auto dim = std::ranges::find_if(
        dims, [&](int each) { return kernel.takes(cuda::traits_for({}), cuda::type_of<T>, each); });
    if (dim == dims.end() || !kernel.deterministic) return;
    Way<float> way =
        gpu_way<T>(direction + kernel.name + " in " + cuda::name_of(cuda::type_of<T>), false, kernels);
    way.problem_of = [wide = *dim](Case what) {
      what.dim = wide;
      what.value_dim = 0;
      return problem_in<T>(what, nullptr);
    };
    if (kernel.launch_with_pairs == nullptr)
      way.refuses = [](const Case& what, const Team&) {
        return what.bias_batch > 0 || what.scoring.dropout.drops() || what.scoring.caps();
      };
    ways.push_back(way);
  };
  for (const auto& kernel : cuda::backward_kernels() | std::views::reverse)
    add(kernel, "backward ", {.backward = kernel.name});
  for (const auto& kernel : cuda::forward_kernels() | std::views::reverse)
    add(kernel, "forward ", {.forward = kernel.name});
}

std::vector<Way<float>> kernel_ways() {
  std::vector<Way<float>> all;
  add_kernel_ways<Bf16>(all);
  add_kernel_ways<float>(all);
  return all;
}

TEST(GpuConformance, EveryDeviceWithSomeCases) { expect_every_case(gpu_ways(), 13); }

TEST(GpuConformance, RandomProblems) { expect_random_problems(gpu_ways(), 12); }

// The backward kernels; in the long test, with more cases, the forward kernels as well.
TEST(GpuConformance, KernelsByName) { expect_random_problems(kernel_ways(), 4); }

}  // namespace
}  // namespace ring_attention::test
