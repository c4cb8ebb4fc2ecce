#include "program/diagnose/options.hpp"

#include <algorithm>
#include <sstream>

#include "ring_attention/core/error.hpp"
#include "ring_attention/parallel/partition.hpp"

namespace ring_attention {
namespace {

constexpr const char* notes = R"(Examples:
  ring-attention diagnose cases --ranks 4 --placement zigzag --only full,causal --out my-ring
      Writes my-ring/full/q.npy, k.npy, v.npy, dout.npy and so on; my-ring/cases.json says what to compute.
  ring-attention diagnose my-ring
      Reads what your code wrote beside them, my-ring/full/out.npy and so on, and says what is wrong with it.

Your code writes out.npy, and if it has them lse.npy, dq.npy, dk.npy and dv.npy: whole arrays in the order of positions,
or one file a rank, out.0.npy, out.1.npy and so on. [B, H, S, D] in any order of the axes; float64, float32 or float16;
bf16 saved as float32. The gradients are those of sum(out * dout). Take the cases that your code can compute.
docs/diagnose.md lists the mistakes that are known, and shows the few lines for PyTorch and JAX.

Exit codes: 0 right (within the rounding of its type), 1 wrong, 2 bad input.)";

}  // namespace

diagnose::Job DiagnoseCasesOptions::job() const {
  const auto together = static_cast<int>(ulysses), all = static_cast<int>(ranks);
  const RankGrid grid = rank_grid(partition_named(parallel), together, 0, all);
  return {all, placement_kind_named(placement), grid.ulysses.size};
}

std::vector<diagnose::Case> DiagnoseCasesOptions::cases() const {
  std::vector<diagnose::Case> all = diagnose::ladder(job());
  if (only.empty()) return all;
  std::vector<std::string> names;
  std::istringstream text(only);
  for (std::string name; std::getline(text, name, ',');) names.push_back(name);
  for (const std::string& name : names)
    if (std::ranges::find(all, name, &diagnose::Case::name) == all.end()) {
      std::string known;
      for (const diagnose::Case& one : all) known += (known.empty() ? "" : ", ") + one.name;
      throw InputError("--only " + only, "no case is called '" + name + "'", "take some of " + known);
    }
  std::erase_if(all, [&](const auto& one) { return std::ranges::find(names, one.name) == names.end(); });
  return all;
}

void declare_diagnose_options(CommandLine& command, DiagnoseOptions& options) {
  command.option("DIR", options.directory, "A directory of `diagnose cases`, with your results in it", "");
  command.flag("--json", options.json, "Print the diagnosis as one JSON object instead of text");
  command.footer(notes);
}

void declare_diagnose_cases_options(CommandLine& command, DiagnoseCasesOptions& options) {
  command.section("Ranks of your code");
  command.option("--ranks", options.ranks, "How many; three or more tell more mistakes apart than two",
                 {1, 48});
  command.choice("--placement", options.placement, {"contiguous", "striped", "zigzag"},
                 "Which tokens a rank holds");
  command.choice("--parallel", options.parallel, {"ring", "ulysses", "hybrid", "all-gather"},
                 "How your ranks divide the work");
  command.option("--ulysses", options.ulysses, "Ranks of a hybrid that exchange tokens for heads", {1, 48});
  command.section("Cases");
  command.option("--only", options.only, "These cases, with commas between them (default all)", "NAME,...");
  command.option("--seed", options.seed, "Seed of the arrays", {0});
  command.option("--out", options.out, "Directory for the cases; made if missing");
}

}  // namespace ring_attention
