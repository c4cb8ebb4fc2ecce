#include "diagnose/conventions.hpp"

#include <algorithm>
#include <numbers>

#include "ring_attention/core/text.hpp"

namespace ring_attention::diagnose {
namespace {

void multiply(Tensor<double>& array, double factor) {
  for (double& x : array.view().elements()) x *= factor;
}

/// Row i is the token of position order[i]: each to its position.
void from_rank_order(const Problem& problem, Arrays& arrays) {
  std::vector<Index> order;
  for (int rank = 0; rank < problem.job.ranks; ++rank)
    for (const Index token : positions(problem.job.tokens_of(rank, problem.the_case.tokens)))
      order.push_back(token);
  for (const Array array : all_arrays) {
    if (!arrays.has(array)) continue;
    const Tensor<double> got = arrays[array].clone();
    for (Index head = 0; head < got.shape().heads; ++head)
      for (std::size_t row = 0; row < order.size(); ++row)
        matrix(arrays[array].view(), 0, head).row(order[row]) =
            matrix(got.view(), 0, head).row(static_cast<Index>(row));
  }
}

/// Are these arrays right in all cases, if `translate` is applied to them? In float at least: who saves products of floats
/// may save them in double.
bool right_after(std::span<const Evidence> known, const std::vector<Answer>& answers,
                 std::span<const Array> which, const auto& translate) {
  bool looked = false;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const Arrays& arrays = answers[i].arrays;
    if (!arrays.has_any(which)) continue;
    looked = true;
    Arrays translated;
    for (const Array array : which) translated[array] = arrays[array].clone();
    translate(translated);
    const PerArray tolerances =
        known[i].yardstick->tolerances(std::max(precision_of(arrays, which), Precision::float32));
    const Arrays& right = known[i].problem->right;
    if (!(known[i].yardstick->residual(translated, right, which, tolerances).worst <= 1)) return false;
  }
  return looked;
}

struct Unit {
  std::string says;
  double factor;  // of the numbers that a code returned
};

/// Multiplies arrays by the first factor that makes them right in all cases. One that is right as it is stays.
void find_unit(std::span<const Evidence> known, std::vector<Answer>& answers, std::span<const Array> which,
               const std::vector<Unit>& units, std::vector<std::string>& said) {
  const auto times = [&](double factor) {
    return [=](Arrays& arrays) {
      for (const Array array : which)
        if (arrays.has(array)) multiply(arrays[array], factor);
    };
  };
  if (right_after(known, answers, which, times(1))) return;
  for (const Unit& unit : units) {
    if (!right_after(known, answers, which, times(unit.factor))) continue;
    for (Answer& answer : answers) times(unit.factor)(answer.arrays);
    said.push_back(unit.says);
    return;
  }
}

}  // namespace

std::vector<Convention> conventions_for(const Problem& problem) {
  std::vector<Convention> all;
  if (problem.job.ranks > 1 && problem.job.placement != PlacementKind::contiguous)
    all.push_back({"tokens are in the order of the ranks, not in that of positions", from_rank_order});
  all.push_back({"lse is in base 2", [](const Problem&, Arrays& arrays) {
                   if (arrays.has(Array::lse)) multiply(arrays[Array::lse], std::numbers::ln2);
                 }});
  return all;
}

void translate_units(std::span<const Evidence> known, std::vector<Answer>& answers,
                     std::vector<std::string>& said) {
  const Problem& problem = *answers.front().problem;
  const double ranks = problem.job.ranks, scale = problem.the_case.scale();
  const std::array lse{Array::lse};
  find_unit(known, answers, lse,
            {{"lse is in base 2", std::numbers::ln2},
             {"lse is divided by the scale", scale},
             {"lse is multiplied by the scale", 1 / scale}},
            said);
  if (problem.job.ranks == 1) return;
  const std::string gradients = "dq, dk and dv are the gradients of sum(out * dout) ";
  find_unit(known, answers, of_backward,
            {{gradients + format("times %g, the number of ranks", ranks), 1 / ranks},
             {gradients + format("by %g, the number of ranks", ranks), ranks}},
            said);
}

std::vector<Answer> copies(const std::vector<Answer>& answers) {
  std::vector<Answer> all;
  for (const Answer& answer : answers) {
    all.push_back({answer.problem, {}});
    for (const Array array : all_arrays) all.back().arrays[array] = answer.arrays[array].clone();
  }
  return all;
}

}  // namespace ring_attention::diagnose
