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
bool right_after(const std::vector<Answer>& answers, std::span<const Array> which, const auto& translate) {
  bool looked = false;
  for (const Answer& answer : answers) {
    if (!answer.arrays.has_any(which)) continue;
    looked = true;
    Arrays translated;
    for (const Array array : all_arrays) translated[array] = answer.arrays[array].clone();
    translate(*answer.problem, translated);
    const Yardstick yardstick(*answer.problem);
    const PerArray tolerances =
        yardstick.tolerances(std::max(precision_of(answer.arrays, which), Precision::float32));
    if (!(yardstick.residual(translated, answer.problem->right, which, tolerances).worst <= 1)) return false;
  }
  return looked;
}

struct Unit {
  std::string says;
  double factor;  // of the numbers that a code returned
};

/// Multiplies arrays by the first factor that makes them right in all cases. One that is right as it is stays.
void find_unit(std::vector<Answer>& answers, std::span<const Array> which, const std::vector<Unit>& units,
               std::vector<std::string>& said) {
  const auto times = [&](double factor) {
    return [&which, factor](const Problem&, Arrays& arrays) {
      for (const Array array : which)
        if (arrays.has(array)) multiply(arrays[array], factor);
    };
  };
  if (right_after(answers, which, times(1))) return;
  for (const Unit& unit : units) {
    if (!right_after(answers, which, times(unit.factor))) continue;
    for (Answer& answer : answers) times(unit.factor)(*answer.problem, answer.arrays);
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

std::vector<std::string> translate_units(std::vector<Answer>& answers) {
  const Problem& problem = *answers.front().problem;
  const double ranks = problem.job.ranks, scale = problem.the_case.scale();
  std::vector<std::string> said;
  const std::array lse{Array::lse};
  find_unit(answers, lse,
            {{"lse is in base 2", std::numbers::ln2},
             {"lse is divided by the scale", scale},
             {"lse is multiplied by the scale", 1 / scale}},
            said);
  if (problem.job.ranks > 1)
    find_unit(
        answers, of_backward,
        {{format("dq, dk and dv are %g times the gradients of sum(out * dout): %g is the number of ranks",
                 ranks, ranks),
          1 / ranks},
         {format("dq, dk and dv are the gradients of sum(out * dout) by %g, the number of ranks", ranks),
          ranks}},
        said);
  return said;
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
