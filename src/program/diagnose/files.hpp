/// \file
/// The files of `diagnose`: cases and their arrays; what a user's code wrote beside them.
#pragma once

#include <string>

#include "diagnose/submission.hpp"
#include "program/diagnose/options.hpp"

namespace ring_attention {

/// Writes OUT/cases.json, and for each case OUT/NAME with q.npy, k.npy, v.npy, dout.npy and, of some cases, bias.npy.
/// \throws InputError when a file cannot be written, or OUT has results for other arrays
void write_cases(const DiagnoseCasesOptions& options);

/// \throws InputError, one line: for a directory without cases, arrays that are not those of cases.json, results of no
///     case, of some ranks only, or of a shape that does not fit
[[nodiscard]] diagnose::Submission read_submission(const std::string& directory);

}  // namespace ring_attention
