/// \file
/// What `ring-attention diagnose` and `ring-attention diagnose cases` were asked to do.
#pragma once

#include <string>
#include <vector>

#include "cli/command_line.hpp"
#include "diagnose/problem.hpp"

namespace ring_attention {

/// Ranks of the code to be diagnosed: the cases have tokens for each of them.
inline constexpr Bounds any_ranks{1, 48};

/// The flags of `diagnose cases`.
struct DiagnoseCasesOptions {
  Index ranks = 3;
  std::string placement = "contiguous", parallel = "ring";
  Index ulysses = 2;  ///< of a hybrid
  std::string only;   ///< names with commas between them; empty: all
  Index seed = 1;
  std::string out = "my-ring";

  /// \throws InputError for ranks that cannot be divided so
  [[nodiscard]] diagnose::Job job() const;
  /// The cases of --only. \throws InputError for a name that no case has
  [[nodiscard]] std::vector<diagnose::Case> cases() const;
};

/// The flags of `diagnose DIR`.
struct DiagnoseOptions {
  std::string directory;
  bool pairs = true;
  bool json = false;
};

/// Adds the flags of `diagnose` to a command.
void declare_diagnose_options(CommandLine& command, DiagnoseOptions& options);
/// The same of `diagnose cases`.
void declare_diagnose_cases_options(CommandLine& command, DiagnoseCasesOptions& options);

}  // namespace ring_attention
