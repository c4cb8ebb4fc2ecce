/// \file
/// `Submission`: what a code handed back for some cases, brought into one form.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "diagnose/layout.hpp"
#include "diagnose/search.hpp"

namespace ring_attention::diagnose {

/// An array as a code handed it back. An error begins with `name`: that of a file, or "dq of rank 1".
struct Given {
  std::string name;
  RawArray raw;
};

/// For one case, in the order of `all_arrays`: nothing, the whole array, or one a rank.
using GivenArrays = std::array<std::vector<Given>, all_arrays.size()>;

/// The cases that have results. Not copied: `answers` point to `problems`.
struct Submission {
  Submission() = default;
  Submission(Submission&&) = default;
  Submission& operator=(Submission&&) = default;

  std::vector<Problem> problems;
  std::vector<Answer> answers;
  std::vector<std::string> layouts;  ///< "out: axes are [S, H, D]": what was rearranged
  std::vector<std::string> without;  ///< names of the cases without results
};

/// \param given  for each problem
/// \throws InputError, one line: for a shape that does not fit, results of another case or of another seed
[[nodiscard]] Submission submission_of(std::vector<Problem> problems, const std::vector<GivenArrays>& given);

}  // namespace ring_attention::diagnose
