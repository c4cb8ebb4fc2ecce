// smallest [MOST_RANKS]: for each mutant of tests/support the fewest ranks, the fewest tokens and the weakest check that
// show it, found by running it: a line `mutant TAB ranks TAB tokens TAB check`.
//
// Checks from the weakest on: all numbers are finite; V = 1 gives out = 1; out without a mask; out with a causal mask; out
// of the other cases; lse; gradients. Tokens are multiples of the ranks, because some mutants need shards of one length.
#include <cstdio>
#include <cstdlib>

#include "diagnose/running_rings.hpp"

using namespace ring_attention;
using namespace ring_attention::diagnose;

namespace {

constexpr Index most_tokens_of_a_rank = 8;

/// What shows: the number of a check and its case, the weakest check and the simplest case first, and what it is called.
using Shown = std::optional<std::pair<int, std::string>>;
using Run = std::function<Answer(const Trial&)>;

bool finite(const Arrays& arrays) {
  return std::ranges::all_of(all_arrays, [&](Array array) {
    return std::ranges::all_of(arrays[array].view().elements(), [&](double x) {
      return array == Array::lse ? !std::isnan(x) && x < 1e300 : std::isfinite(x);
    });
  });
}

/// Larger than what rounding does to scores as large as those of the cases.
bool differs(const Tensor<double>& got, const Tensor<double>& want) {
  double largest = 0, error = 0;
  for (Index i = 0; i < want.size(); ++i) {
    if (got.data()[i] == want.data()[i]) continue;  // also -inf
    largest = std::max(largest, std::abs(want.data()[i]));
    error = std::max(error, std::abs(got.data()[i] - want.data()[i]));
  }
  return !(error <= 1e-3 * std::max(largest, 1.0));
}

Shown shown_by(const Run& run, const DiagnoseCase& c, const JobShape& job, int number) {
  Trial problem(c, job, 1);
  const Answer answer = run(problem);
  if (!finite(answer.arrays)) return std::pair(number, "all numbers are finite; " + c.name);
  const auto wrong = [&](Array array) { return differs(answer.arrays[array], problem.right[array]); };
  if (wrong(Array::out)) {
    if (!c.sinks) {
      problem.v.fill(1);
      Tensor<double> ones(c.q(), 1);
      if (differs(run(problem).arrays[Array::out], ones))
        return std::pair(20 + number, "V = 1 gives out = 1; " + c.name);
    }
    return std::pair(40 + number, "out; " + c.name);
  }
  for (const Array array : {Array::lse, Array::dq, Array::dk, Array::dv})
    if (wrong(array))
      return std::pair(40 + 20 * static_cast<int>(array) + number, name(array) + "; " + c.name);
  return {};
}

/// A case with other tokens.
DiagnoseCase shortened(DiagnoseCase c, Index tokens) {
  c.tokens = tokens;
  if (!c.documents.empty()) c.documents = {0, (tokens + 2) / 3, (2 * tokens + 2) / 3, tokens};
  if (c.window > 0) c.window = std::max(Index{1}, std::min(c.window, tokens / 2));
  return c;
}

/// The first job that shows it and not the right one, its fewest tokens, and the weakest check with any number of tokens.
void print_smallest(const std::string& mutant, const Run& run, const Run& right,
                    const std::vector<JobShape>& jobs,
                    const std::function<std::vector<DiagnoseCase>(const JobShape&)>& cases_of) {
  for (const JobShape& job : jobs) {
    Index fewest = 0;
    Shown weakest;
    const std::vector<DiagnoseCase> cases = cases_of(job);
    const Index unit = job.placement == PlacementKind::zigzag ? 2 * job.ranks : job.ranks;
    for (Index times = 1; times <= most_tokens_of_a_rank; ++times)
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const DiagnoseCase c = shortened(cases[i], times * unit);
        const auto number = static_cast<int>(i);
        const Shown shown = shown_by(run, c, job, number);
        if (!shown || shown_by(right, c, job, number)) continue;
        if (fewest == 0) fewest = times * unit;
        if (!weakest || *shown < *weakest) weakest = shown;
      }
    if (!weakest) continue;
    std::printf("%s\t%d\t%td\t%s\n", mutant.c_str(), job.ranks, fewest, weakest->second.c_str());
    std::fflush(stdout);
    return;
  }
  std::printf("%s\t-\t-\tnone of these\n", mutant.c_str());
}

/// Mutants that the cases do not show: they need dropout, rows without keys, or a count of messages.
struct Elsewhere {
  using Check = std::function<bool(const test::GradientProblem<float>&, int ranks)>;
  std::string name, check;
  Check passes, right_one_passes;
  test::Case what;
};

template <class Engine>
bool forward_is_right(const test::GradientProblem<float>& problem, int ranks) {
  const auto device = test::device_of<float, Engine>(problem.what().block);
  return static_cast<bool>(
      test::agrees(test::run(problem.forward, {.rings = ranks}, device), problem.forward));
}

template <class Link>
bool messages_are_right(const test::GradientProblem<float>& problem, int ranks) {
  const test::Team team{.rings = ranks};
  const auto got = test::run(problem.forward, team, CpuDevice<float>(), {.links = test::links_with<Link>});
  return static_cast<bool>(test::sent_what_it_should(got, problem.what(), team));
}

std::vector<Elsewhere> elsewhere() {
  return {{"tests/support UnguardedMerge",
           "all numbers are finite; queries before the first key",
           forward_is_right<test::SmallEngine<float, test::UnguardedMerge>>,
           forward_is_right<test::SmallEngine<float, test::RightRules>>,
           {.kv_heads = 1, .scoring = {0.5, Mask::causal(-1)}}},
          {"tests/support OneHopTooMany",
           "messages and bytes",
           messages_are_right<test::OneHopTooMany>,
           messages_are_right<LoopbackTransport>,
           {.kv_heads = 1}}};
}

void print_elsewhere(const Elsewhere& mutant, int most_ranks) {
  for (int ranks = 1; ranks <= most_ranks; ++ranks)
    for (Index tokens = ranks; tokens <= most_tokens_of_a_rank * ranks; ++tokens) {
      test::Case what = mutant.what;
      what.queries = what.keys = tokens;
      const auto problem = test::make_gradient_problem<float>(what);
      if (mutant.passes(problem, ranks) || !mutant.right_one_passes(problem, ranks)) continue;
      std::printf("%s\t%d\t%td\t%s\n", mutant.name.c_str(), ranks, tokens, mutant.check.c_str());
      return;
    }
}

}  // namespace

int main(int argc, char** argv) {
  const int most_ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  std::vector<JobShape> rings;
  for (int ranks = 1; ranks <= most_ranks; ++ranks) rings.push_back({ranks, PlacementKind::contiguous});
  std::vector<Wrong> wrong = wrong_forwards();
  std::ranges::move(wrong_backwards(), std::back_inserter(wrong));
  for (const Wrong& mutant : wrong) {
    if (!mutant.name.starts_with("tests/")) continue;
    print_smallest(
        mutant.name, [&](const Trial& problem) { return answer_of(problem, mutant.ring); },
        [](const Trial& problem) { return answer_of(problem, Running()); }, rings,
        [&](const JobShape& job) {
          std::vector<DiagnoseCase> cases = ladder(job);
          std::erase_if(cases, [&](const DiagnoseCase& c) {
            return c.padding > 0 || c.name == "uneven" ||
                   std::ranges::find(mutant.without, c.name) != mutant.without.end();
          });
          return cases;
        });
  }
  for (const Elsewhere& mutant : elsewhere()) print_elsewhere(mutant, most_ranks);
}
