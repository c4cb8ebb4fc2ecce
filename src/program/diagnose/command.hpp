/// \file
/// `ring-attention diagnose`: finds the mistake in the results of another ring.
#pragma once

#include "program/diagnose/options.hpp"

namespace ring_attention {

/// Reads results, prints what is wrong with them. One process is enough. Returns the exit code: 0 right, 1 wrong.
/// \throws InputError
int diagnose_command(const DiagnoseOptions& options);

/// Writes the cases, and prints what to do with them.
/// \throws InputError
int diagnose_cases_command(const DiagnoseCasesOptions& options);

}  // namespace ring_attention
