/// \file
/// `ring-attention diagnose`: starts the Python package ring_attention_diagnose.
#pragma once

#include <string>
#include <vector>

namespace ring_attention {

/// Hands the words after `diagnose` to the package, in the first python3 that has NumPy. Returns its exit code.
/// \throws InputError when the package is neither in the build nor in the installed data, or no python3 has NumPy
int diagnose_command(const std::vector<std::string>& words);

}  // namespace ring_attention
