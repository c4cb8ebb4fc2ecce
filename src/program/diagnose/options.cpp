#include "program/diagnose/options.hpp"

#include <sstream>

namespace ring_attention {
namespace {

constexpr const char* notes = R"(Examples:
  ring-attention diagnose cases --ranks 4 --placement zigzag --only full,causal --out my-ring
      Writes my-ring/full/q.npy, k.npy, v.npy, dout.npy and so on; my-ring/cases.json says what to compute.
  ring-attention diagnose my-ring
      Reads what your code wrote next to them, my-ring/full/out.npy and so on, and says what is wrong with it.

Your code writes out.npy, and if it has them lse.npy, dq.npy, dk.npy and dv.npy: whole arrays in the order of positions,
or one file per rank, out.0.npy, out.1.npy and so on. [B, H, S, D] with the axes in any order; float64, float32 or float16;
bf16 saved as float32. The gradients are those of sum(out * dout). Choose the cases that your code can compute.
docs/diagnose.md lists the known mistakes, and shows the few lines that PyTorch and JAX need.

Exit codes: 0 right (within the rounding of its type), 1 wrong, 2 bad input.)";

}  // namespace

diagnose::Job DiagnoseCasesOptions::job() const {
  return diagnose::job_of(static_cast<int>(ranks), placement, parallel, static_cast<int>(ulysses));
}

std::vector<diagnose::Case> DiagnoseCasesOptions::cases() const {
  std::vector<std::string> names;
  std::istringstream text(only);
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  return diagnose::ladder(job(), names);
}

void declare_diagnose_options(CommandLine& command, DiagnoseOptions& options) {
  command.option("DIR", options.directory, "A directory of `diagnose cases`, with your results in it", "");
  command.flag("--json", options.json, "Print the diagnosis as one JSON object instead of text");
  command.footer(notes);
}

void declare_diagnose_cases_options(CommandLine& command, DiagnoseCasesOptions& options) {
  command.section("Ranks of your code");
  command.option("--ranks", options.ranks, "How many; three or more tell more mistakes apart than two",
                 any_ranks);
  command.choice("--placement", options.placement, {"contiguous", "striped", "zigzag"},
                 "Which tokens a rank holds");
  command.choice("--parallel", options.parallel, {"ring", "ulysses", "hybrid", "all-gather"},
                 "How your ranks divide the work");
  command.option("--ulysses", options.ulysses, "Ranks of a hybrid that exchange tokens for heads", any_ranks);
  command.needs("--ulysses", "--parallel", {"hybrid"});
  command.needs("--placement", "--parallel", {"ring", "hybrid", "all-gather"});
  command.section("Cases");
  command.option("--only", options.only, "Only these cases, separated by commas (default all)", "NAME,...");
  command.option("--seed", options.seed, "Seed of the arrays", any_seed);
  command.option("--out", options.out, "Directory for the cases; made if missing");
}

}  // namespace ring_attention
