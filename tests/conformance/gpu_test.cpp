// The conformance suite on a GPU, emulated or real: ranks are threads with a stream of their own, and all arrays are in its
// memory.

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

/// q, k, v and dO of type T. Parcels go from GPU to GPU, or through the memory of the host.
template <class T>
void add_gpu_ways(std::vector<Way<float>>& ways, const std::string& type) {
  const auto on_gpu = [](bool staged) {
    return [staged](const Task<float>& task, const Team& team) { return run_on_gpu<T>(task, team, staged); };
  };
  Way<float> way{type + " on a GPU", on_gpu(false)};
  way.bytes = bytes_of<T>;
  way.problem_of = [](const Case& what) { return problem_in<T>(what, nullptr); };
  way.agrees = agrees_in_type<T>;
  ways.push_back(way);
  way.name += ", staged";
  way.same = std::exchange(way.run, on_gpu(true));
  ways.push_back(way);
}

std::vector<Way<float>> gpu_ways() {
  std::vector<Way<float>> all;
  add_gpu_ways<float>(all, "fp32");
  add_gpu_ways<Bf16>(all, "bf16");
  add_gpu_ways<Fp16>(all, "fp16");
  return all;
}

TEST(GpuConformance, EveryDeviceWithSomeCases) { expect_every_case(gpu_ways(), 13); }

TEST(GpuConformance, RandomProblems) { expect_random_problems(gpu_ways(), 12); }

}  // namespace
}  // namespace ring_attention::test
