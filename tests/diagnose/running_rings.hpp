// Rings that really run: the library's, in float, on threads, right or with a mutant of tests/support.
#pragma once

#include "diagnose/answers.hpp"
#include "support/backward_mutants.hpp"
#include "support/mutants.hpp"

namespace ring_attention::diagnose {

/// What a ring runs with. The right ones, unless a test replaces them.
struct Running {
  std::function<test::MakeForward<float>(const Trial&)> forward = [](const Trial&) {
    return test::make_forward<float, BlockwiseEngine<float>>;
  };
  test::MakeBackward<float> backward = test::make_backward<float, BlockwiseBackward<float>>;
  test::MakeLinks forward_links = test::thread_links, backward_links = test::thread_links;
  /// Changes what the backward takes from the forward.
  std::function<void(const test::GradientProblem<float>&, test::TeamRun<float>&)> between = [](const auto&,
                                                                                               auto&) {};
};

inline test::Case case_of(const Trial& problem) {
  const DiagnoseCase& c = problem.the_case;
  test::Case what;
  what.kv_heads = c.kv_heads;
  what.group = c.group();
  what.queries = what.keys = c.tokens;
  what.dim = c.dim;
  what.scoring = problem.scoring();
  what.kind = problem.job.placement;
  if (problem.bias.size() > 0) {
    what.bias_batch = 1;
    what.bias_heads = c.heads;
  }
  return what;
}

inline test::GradientProblem<float> in_float(const Trial& problem) {
  return test::make_gradient_problem<float>(
      test::make_problem<float>(case_of(problem), converted<float>(problem.q), converted<float>(problem.k),
                                converted<float>(problem.v), converted<float>(problem.bias)),
      converted<float>(problem.dout));
}
inline Answer answer_of(const Trial& problem, const AttentionResult<float>& attended,
                        const Gradients<float>& gradients) {
  Answer answer{&problem, {}};
  answer.arrays[Array::out] = converted<double>(attended.out);
  answer.arrays[Array::lse] = converted<double>(attended.lse);
  answer.arrays[Array::dq] = converted<double>(gradients.q);
  answer.arrays[Array::dk] = converted<double>(gradients.k);
  answer.arrays[Array::dv] = converted<double>(gradients.v);
  return answer;
}

/// The answer of a ring to one problem.
inline Answer answer_of(const Trial& problem, const Running& ring) {
  const test::Team team{.rings = problem.job.ranks};
  const auto gradients = in_float(problem);
  const test::DeviceOf<float> device(ring.forward(problem), ring.backward);
  auto forward = test::run(gradients.forward, team, device, {.links = ring.forward_links});
  const AttentionResult<float> returned{forward.attended.out.clone(), forward.attended.lse.clone()};
  ring.between(gradients, forward);
  const auto backward =
      test::run(gradients, team, device, {.links = ring.backward_links, .forward = &forward});
  return answer_of(problem, returned, backward.gradients);
}

/// A ring whose loop asks another topology.
template <class Owners>
Running with_owners() {
  Running ring;
  ring.forward = [](const Trial& problem) -> test::MakeForward<float> {
    const Placement placement(problem.job.placement, problem.the_case.tokens, problem.job.ranks);
    return [=](const Scoring& scoring, Index block, View<const float> q, const TokenRanges& ranges,
               View<const float> bias) {
      int rank = 0;
      while (placement.ranges(rank) != ranges) ++rank;
      return std::make_unique<test::EngineWithOwners<float, Owners>>(
          test::make_forward<float, CpuEngine<float>>(scoring, block, q, ranges, bias),
          Ring{rank, placement.ranks()}, placement);
    };
  };
  return ring;
}

template <class Engine>
Running with_forward() {
  Running ring;
  ring.forward = [](const Trial&) { return test::make_forward<float, Engine>; };
  return ring;
}

struct OwnOnly : test::RightOwners {
  static int steps(const Ring&) { return 1; }
};

/// One mutant, or the id of a mistake, as the list calls it.
struct Wrong {
  std::string name;
  Running ring;
  std::vector<std::string> without = {};  ///< cases that the mutant cannot run
};

inline std::vector<Wrong> wrong_forwards() {
  Running early;
  early.forward_links = test::links_with<test::SwapsTooEarly>;
  return {
      {"tests/support OneStepTooFew", with_owners<test::OneStepTooFew>()},
      {"no-ring", with_owners<OwnOnly>()},
      {"tests/support OwnerOffByOne", with_owners<test::OwnerOffByOne>(), {"uneven"}},
      {"tests/support OwnerBackwards", with_owners<test::OwnerBackwards>(), {"uneven"}},
      {"tests/support SwapsTooEarly", early, {"uneven"}},
      {"tests/support FiniteStart", with_forward<test::SmallEngine<float, test::FiniteStart>>()},
      {"tests/support UnguardedScores", with_forward<test::SmallEngine<float, test::UnguardedScores>>()},
      {"tests/support ForgetsToRescale", with_forward<test::SmallEngine<float, test::ForgetsToRescale>>()},
      {"tests/support OverflowingLseMerge",
       with_forward<test::SmallEngine<float, test::OverflowingLseMerge>>()},
      {"tests/support InterleavedHeads",
       with_forward<test::SmallEngine<float, test::InterleavedHeads<2>>>(),
       {"full", "causal", "window", "documents", "alibi", "bias", "sinks", "uneven", "large"}},
  };
}

inline std::vector<Wrong> wrong_backwards() {
  const auto link = [](test::MakeLinks backward_links) {
    Running ring;
    ring.backward_links = std::move(backward_links);
    return ring;
  };
  // The backward takes out, or lse, of a ring that has seen a rank's own keys only.
  const auto own_shard = [](bool out) {
    Running ring;
    ring.between = [=](const auto& problem, auto& forward) {
      const Placement placement(problem.what().kind, problem.what().keys,
                                static_cast<int>(forward.ranks.size()));
      for (int rank = 0; rank < placement.ranks(); ++rank) {
        const TokenRanges own = placement.ranges(rank);
        const auto rows = [&](const Tensor<float>& array) { return test::rows_of(array, own); };
        const Tensor<float> q = rows(problem.forward.q), k = rows(problem.forward.k),
                            v = rows(problem.forward.v);
        const Tensor<float> bias =
            problem.forward.bias.size() > 0 ? rows(problem.forward.bias) : Tensor<float>();
        const auto alone =
            test::make_forward<float, CpuEngine<float>>(problem.what().scoring, 64, q, own, bias);
        alone->accumulate({k, v, own});
        AttentionResult<float> result = alone->finish();
        auto& attended = forward.ranks[static_cast<std::size_t>(rank)].attended;
        if (out)
          attended.out = std::move(result.out);
        else
          attended.lse = std::move(result.lse);
      }
    };
    return ring;
  };
  return {
      {"tests/support NotReturned", link(test::links_with<test::NotReturned>), {"uneven"}},
      {"tests/support LocalGradients", link(test::links_with<test::LocalGradients>), {"uneven"}},
      {"tests/support StaleKeysAndValues", link(test::links_with<test::StaleKeysAndValues>), {"uneven"}},
      {"delta-own-shard", own_shard(true), {"sinks"}},
      {"lse-own-shard-backward", own_shard(false), {"sinks"}},
  };
}

}  // namespace ring_attention::diagnose
