// Rings that really run: the library's, in float, on threads. Right ones are called right, and each mutant of tests/support
// is named from its own output.
#include <gtest/gtest.h>

#include "diagnose/trials.hpp"
#include "support/backward_mutants.hpp"
#include "support/backward_runs.hpp"
#include "support/mutants.hpp"

namespace ring_attention::diagnose {
namespace {

/// What a ring runs with. The right ones, unless a test replaces them.
struct Running {
  std::function<test::MakeForward<float>(const Problem&)> forward = [](const Problem&) {
    return test::readable_engines<float>.forward;
  };
  test::MakeBackward<float> backward = test::readable_engines<float>.backward;
  test::MakeLoopback forward_link = test::loopback_link<LoopbackTransport>;
  test::MakeLoopback backward_link = test::loopback_link<LoopbackTransport>;
  /// Changes what the backward takes from the forward.
  std::function<void(const test::GradientProblem<float>&, std::vector<test::RankResult<float>>&)> between =
      [](const auto&, auto&) {};
};

test::Case case_of(const Problem& problem) {
  const Case& c = problem.the_case;
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

/// The answer of a ring to one problem.
Answer answer_of(const Problem& problem, const Running& ring) {
  const int ranks = problem.job.ranks;
  test::Problem<float> forward_problem =
      test::make_problem<float>(case_of(problem), converted<float>(problem.q), converted<float>(problem.k),
                                converted<float>(problem.v), converted<float>(problem.bias));
  const auto gradients =
      test::make_gradient_problem<float>(std::move(forward_problem), converted<float>(problem.dout));
  auto forward =
      test::run_loopback_with<float>(gradients.forward, ranks, ring.forward_link, ring.forward(problem));
  const Placement placement(problem.job.placement, problem.the_case.tokens, ranks);
  Tensor<float> out(problem.the_case.q()), lse(problem.the_case.q().per_row());
  for (int rank = 0; rank < ranks; ++rank) {
    const auto& attended = forward[static_cast<std::size_t>(rank)].attended;
    test::put_rows(out, attended.out, placement.ranges(rank));
    test::put_rows(lse, attended.lse, placement.ranges(rank));
  }
  ring.between(gradients, forward);
  const auto backward =
      test::run_loopback_backward_with<float>(gradients, forward, ring.backward_link, ring.backward);
  const Gradients<float> all = test::gathered(backward, gradients);
  Answer answer{&problem, {}};
  answer.arrays[Array::out] = converted<double>(out);
  answer.arrays[Array::lse] = converted<double>(lse);
  answer.arrays[Array::dq] = converted<double>(all.q);
  answer.arrays[Array::dk] = converted<double>(all.k);
  answer.arrays[Array::dv] = converted<double>(all.v);
  return answer;
}

/// The cases of a ring of the library: all but those with padding.
std::vector<Problem> problems(PlacementKind placement, int ranks = 4) {
  return problems_of({ranks, placement}, {"full", "causal", "gqa", "window", "documents", "alibi", "bias",
                                          "sinks", "uneven", "large"});
}

Diagnosis diagnosis_of(const Running& ring, PlacementKind placement,
                       const std::vector<std::string>& without = {}) {
  static std::map<PlacementKind, std::vector<Problem>> made;
  if (!made.contains(placement)) made.emplace(placement, problems(placement));
  std::vector<Answer> answers;
  for (const Problem& problem : made.at(placement))
    if (std::ranges::find(without, problem.the_case.name) == without.end())
      answers.push_back(answer_of(problem, ring));
  Options options;
  options.pairs = options.lists_not_tested = false;
  return diagnose(answers, options);
}

std::string described(const Diagnosis& diagnosis) {
  std::string text = text_of(diagnosis.forward) + " / " + text_of(diagnosis.backward);
  for (const CaseAlone& one : diagnosis.alone)
    text += "\n  " + one.name + " alone: " + text_of(one.forward) + " / " + text_of(one.backward);
  for (const Pass* pass : {&diagnosis.forward, &diagnosis.backward})
    for (const Explanation& near : pass->near)
      text += "\n  near: " + near.hypothesis.mistakes.back()->id + " " + std::to_string(near.explained);
  return text;
}

/// A ring whose loop asks another topology.
template <class Owners>
Running with_owners() {
  Running ring;
  ring.forward = [](const Problem& problem) -> test::MakeForward<float> {
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
  ring.forward = [](const Problem&) { return test::make_forward<float, Engine>; };
  return ring;
}

struct OwnOnly : test::RightOwners {
  static int steps(const Ring&) { return 1; }
};

TEST(RunningRing, ARightOneIsRight) {
  for (const PlacementKind placement : test::placement_kinds)
    for (const bool fast : {false, true}) {
      Running ring;
      if (fast) {
        ring.forward = [](const Problem&) { return test::fast_engines<float>.forward; };
        ring.backward = test::fast_engines<float>.backward;
      }
      const Diagnosis diagnosis = diagnosis_of(ring, placement);
      EXPECT_TRUE(diagnosis.right()) << name(placement) << ": " << text_of(diagnosis.forward) << " / "
                                     << text_of(diagnosis.backward);
    }
}

/// One mutant and the entry of the list that must be found.
struct Wrong {
  std::string id;
  Running ring;
  std::vector<std::string> without = {};  ///< cases that the mutant cannot run
};

TEST(RunningRing, AWrongForwardIsNamed) {
  Running early;
  early.forward_link = test::loopback_link<test::SwapsTooEarly>;
  const std::vector<Wrong> mutants{
      {"steps-short", with_owners<test::OneStepTooFew>()},
      {"no-ring", with_owners<OwnOnly>()},
      {"owner-off-by-one", with_owners<test::OwnerOffByOne>(), {"uneven"}},
      {"owner-wrong-way", with_owners<test::OwnerBackwards>(), {"uneven"}},
      {"early-swap", early, {"uneven"}},
      {"finite-start", with_forward<test::SmallEngine<float, test::FiniteStart>>()},
      {"unguarded-row", with_forward<test::SmallEngine<float, test::UnguardedScores>>()},
      {"neither-rescaled", with_forward<test::SmallEngine<float, test::ForgetsToRescale>>()},
      {"textbook-lse", with_forward<test::SmallEngine<float, test::OverflowingLseMerge>>()},
      {"gqa-modulo",
       with_forward<test::SmallEngine<float, test::InterleavedHeads<2>>>(),
       {"full", "causal", "window", "documents", "alibi", "bias", "sinks", "uneven", "large"}},
      {"mask-local", with_forward<test::LocalForward<CpuEngine<float>>>(), {"alibi", "bias"}},
  };
  for (const Wrong& wrong : mutants) {
    const Diagnosis diagnosis = diagnosis_of(wrong.ring, PlacementKind::contiguous, wrong.without);
    EXPECT_EQ(text_of(diagnosis.forward), wrong.id) << wrong.id;
    EXPECT_TRUE(diagnosis.explained()) << wrong.id << ": " << described(diagnosis);
  }
}

TEST(RunningRing, AWrongBackwardIsNamed) {
  const auto link = [](test::MakeLoopback backward_link) {
    Running ring;
    ring.backward_link = backward_link;
    return ring;
  };
  const auto engine = [](test::MakeBackward<float> backward) {
    Running ring;
    ring.backward = std::move(backward);
    return ring;
  };
  // The backward takes out, or lse, of a ring that has seen a rank's own keys only.
  const auto own_shard = [](bool out) {
    Running ring;
    ring.between = [=](const auto& problem, auto& forward) {
      const Placement placement(problem.what().kind, problem.what().keys, static_cast<int>(forward.size()));
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
        auto& attended = forward[static_cast<std::size_t>(rank)].attended;
        if (out)
          attended.out = std::move(result.out);
        else
          attended.lse = std::move(result.lse);
      }
    };
    return ring;
  };
  const std::vector<Wrong> mutants{
      {"hop-short", link(test::loopback_link<test::NotReturned>), {"uneven"}},
      {"dkdv-stay-local", link(test::loopback_link<test::LocalGradients>), {"uneven"}},
      {"step-before", link(test::loopback_link<test::StaleKeysAndValues>), {"uneven"}},
      {"dk-no-scale", engine(test::make_backward<float, test::KeysWithoutScale<float>>)},
      {"mask-local",
       engine(test::make_backward<float, test::LocalBackward<CpuBackward<float>>>),
       {"alibi", "bias"}},
      {"delta-own-shard", own_shard(true), {"sinks"}},
      {"lse-own-shard-backward", own_shard(false), {"sinks"}},
  };
  for (const Wrong& wrong : mutants) {
    const Diagnosis diagnosis = diagnosis_of(wrong.ring, PlacementKind::contiguous, wrong.without);
    EXPECT_EQ(text_of(diagnosis.forward), "right") << wrong.id;
    EXPECT_EQ(text_of(diagnosis.backward), wrong.id) << described(diagnosis);
  }
}

}  // namespace
}  // namespace ring_attention::diagnose
