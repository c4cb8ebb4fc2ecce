// The rows of the conformance suite that compute: a device, and what is due from it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/run.hpp"

namespace ring_attention::test {

/// A device. A new engine is one of these.
template <class T>
struct Way {
  using Run = std::function<TeamRun<T>(const Task<T>& task, const Team& team)>;

  std::string name;
  Run run;
  Run same = {};  ///< another way, or another run, with the same bits
  NumberBytes bytes = bytes_of<T>;
  Index tile = 0;  ///< ranks hold whole tiles of this many tokens
  /// Makes the problem of the numbers that this device computes with; empty: any numbers.
  std::function<GradientProblem<T>(const Case& what)> problem_of = {};
  std::function<testing::AssertionResult(const TeamRun<T>& got, const GradientProblem<T>& problem)> agrees =
      [](const TeamRun<T>& got, const GradientProblem<T>& problem) { return test::agrees(got, problem); };

  /// What this device does not compute; empty: it computes everything.
  std::function<bool(const Case& what, const Team& team)> refuses = {};

  /// The team, with ranks that hold what this device computes.
  [[nodiscard]] Team of(Team team) const {
    team.tile = tile;
    return team;
  }
  [[nodiscard]] bool takes(const Case& what, const Team& team) const {
    return can_share_heads(what.q().heads, what.kv_heads, team.ulysses) && !(refuses && refuses(what, team));
  }
};

template <class Input, class T = Input>
typename Way<SumOf<Input>>::Run run_on(const CpuOptions& options) {
  return [device = std::shared_ptr<Device<Input, T>>(make_cpu_device<Input, T>(options))](
             const auto& task, const Team& team) { return run(task, team, *device); };
}

/// The results due are those of K and V rounded to bf16, on every rank; its own K,V are among them.
inline GradientProblem<float> problem_of_bf16(const Case& what) {
  auto [q, k, v] = random_inputs<float>(what);
  const auto rounded = [](const Tensor<float>& x) { return converted<float>(converted<Bf16>(x)); };
  GradientProblem<float> problem = make_gradient_problem(
      make_problem<float>(what, std::move(q), rounded(k), rounded(v), random_bias<float>(what)),
      random_grad_out<float>(what));
  problem.forward.k = std::move(k);
  problem.forward.v = std::move(v);
  return problem;
}

/// The CPU's: readable engines, the fast ones of each instruction set on one thread and three, K,V that travel as bf16, and
/// the same bits on any number of ranks.
template <class T>
std::vector<Way<T>> cpu_ways() {
  const auto readable = [](const Task<T>& task, const Team& team) {
    return run(task, team, ReadableDevice<T>({}, task.forward.what.block));
  };
  std::vector<Way<T>> all{{"readable", readable, readable}};
  for (const Isa isa : available_isas()) {
    const auto alone = run_on<T>({.isa = isa});
    all.push_back({std::string(name_of(isa)), alone});
    all.push_back({std::string(name_of(isa)) + ", 3 threads", run_on<T>({.threads = 3, .isa = isa}), alone});
  }
  if constexpr (std::is_same_v<T, float>) {
    Way<float> bf16{"K,V travel as bf16, 3 threads", run_on<float, Bf16>({.threads = 3}),
                    run_on<float, Bf16>({})};
    bf16.bytes.wire = sizeof(Bf16);
    bf16.problem_of = problem_of_bf16;
    all.push_back(bf16);
    const auto add_same_bits = [&](const std::string& name, const CpuOptions& options) {
      Way<float> way{"same bits, " + name, run_on<float>(options)};
      way.tile = options.same_bits;
      way.refuses = [](const Case& what, const Team& team) {  // dbias of shared heads depends on the ranks
        return what.bias_batch > 0 && what.bias_heads == 1 && team.ulysses > 1;
      };
      way.same = [one = way.run, tile = way.tile](const Task<float>& task, const Team&) {
        return one(task, {.tile = tile});
      };
      all.push_back(way);
    };
    add_same_bits("tiles of 8", {.same_bits = 8});
    add_same_bits("tiles of 5, 3 threads", {.threads = 3, .same_bits = 5});
  }
  return all;
}

/// One rank, rings, Ulysses, hybrids and an all-gather. A new way to share an attention is one of these.
inline const std::vector<Team> teams{{1, 1}, {1, 2}, {1, 3}, {1, 4}, {1, 7},       {2, 1},
                                     {2, 2}, {4, 1}, {2, 3}, {3, 2}, {1, 3, true}, {1, 5, true}};

}  // namespace ring_attention::test
