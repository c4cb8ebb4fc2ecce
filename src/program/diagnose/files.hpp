/// \file
/// The files of `diagnose`: cases and their arrays; what a user's code wrote beside them.
#pragma once

#include <string>
#include <vector>

#include "diagnose/search.hpp"
#include "program/diagnose/options.hpp"

namespace ring_attention {

/// Writes OUT/cases.json, and for each case OUT/NAME with q.npy, k.npy, v.npy, dout.npy and, of some cases, bias.npy.
/// \throws InputError when a file cannot be written
void write_cases(const DiagnoseCasesOptions& options);

/// What was found in a directory.
struct Submission {
  std::vector<diagnose::Problem> problems;  ///< of the cases that have results
  std::vector<diagnose::Answer> answers;    ///< point to `problems`
  std::vector<std::string> layouts;         ///< "out: axes are [S, H, D]": what was rearranged
  std::vector<std::string> without;         ///< names of the cases without results
};

/// \throws InputError, one line: for a directory without cases, arrays that are not those of cases.json, results of no
///     case, of some ranks only, or of a shape that does not fit
[[nodiscard]] Submission read_submission(const std::string& directory);

}  // namespace ring_attention
