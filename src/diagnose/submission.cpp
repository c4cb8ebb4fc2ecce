#include "diagnose/submission.hpp"

#include <algorithm>
#include <optional>

#include "ring_attention/core/error.hpp"

namespace ring_attention::diagnose {
namespace {

/// One array of a case, arranged. \param layouts  gets what was rearranged, once
Tensor<double> arranged(const Problem& problem, Array array, Index tokens, const Given& given,
                        std::vector<std::string>& layouts) {
  auto found = arranged(problem.the_case, array, tokens, given.raw);
  if (!found) {
    const Shape& wanted = problem.the_case.shape_of(array);
    std::vector<Index> extents{wanted.heads, tokens};
    if (array != Array::lse) extents.push_back(wanted.dim);
    throw InputError(given.name,
                     "the shape " + shape_text(given.raw.extents) + " is not " + shape_text(extents) +
                         " in some order of the axes",
                     "reshape the array before it is handed back");
  }
  const std::string line = name(array) + ": " + found->says;
  if (!found->says.empty() && std::ranges::find(layouts, line) == layouts.end()) layouts.push_back(line);
  return std::move(found->array);
}

Arrays arrays_of(const Problem& problem, const GivenArrays& given, std::vector<std::string>& layouts) {
  const Index tokens = problem.the_case.tokens;
  Arrays arrays;
  for (const Array array : all_arrays) {
    const std::vector<Given>& pieces = given[static_cast<std::size_t>(array)];
    if (pieces.empty()) continue;
    if (pieces.size() == 1) {
      arrays[array] = arranged(problem, array, tokens, pieces.front(), layouts);
      continue;
    }
    std::vector<Tensor<double>> parts;
    for (const Given& piece : pieces) {
      const auto rank = static_cast<int>(parts.size());
      const Index here = count(problem.job.tokens_of(rank, tokens));
      parts.push_back(arranged(problem, array, here, piece, layouts));
    }
    arrays[array] = joined(problem, parts);
  }
  return arrays;
}

/// Is the output that of another case, or of the case with the arrays of another seed?
void check_origin(const Answer& answer, const std::vector<Problem>& problems) {
  if (!answer.arrays.has(Array::out)) return;
  const Problem& own = *answer.problem;
  const Yardstick yardstick(own);
  const PerArray tolerances = yardstick.tolerances(Precision::bf16);
  const auto fits = [&](const Problem& problem) {
    return problem.right[Array::out].shape() == answer.arrays[Array::out].shape() &&
           yardstick.residual(answer.arrays, problem.right, std::array{Array::out}, tolerances).worst <= 1;
  };
  if (fits(own)) return;
  for (const Problem& other : problems)
    if (&other != &own && fits(other))
      throw InputError("results of " + own.the_case.name, "are those of the case " + other.the_case.name,
                       "hand them back for that case");
  constexpr std::uint64_t seeds = 100;  // those that users take
  for (std::uint64_t seed = 0; seed < seeds; ++seed)
    if (seed != own.seed && fits(Problem(own.the_case, own.job, seed)))
      throw InputError("results of " + own.the_case.name,
                       "are those for the arrays of seed " + std::to_string(seed),
                       "these cases have seed " + std::to_string(own.seed) + ": compute them again");
}

}  // namespace

Submission submission_of(std::vector<Problem> problems, const std::vector<GivenArrays>& given) {
  Submission submission;
  for (std::size_t i = 0; i < problems.size(); ++i) {
    Answer answer{nullptr, arrays_of(problems[i], given[i], submission.layouts)};
    if (!answer.arrays.has_any(all_arrays)) {
      submission.without.push_back(problems[i].the_case.name);
      continue;
    }
    submission.problems.push_back(std::move(problems[i]));
    submission.answers.push_back(std::move(answer));
  }
  for (std::size_t i = 0; i < submission.answers.size(); ++i)
    submission.answers[i].problem = &submission.problems[i];
  for (const Answer& answer : submission.answers) check_origin(answer, submission.problems);
  return submission;
}

}  // namespace ring_attention::diagnose
