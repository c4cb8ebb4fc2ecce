// What rings that ran returned for the cases, as files for tests/diagnose/rings_test.py, which lets them be diagnosed.
#pragma once

#include <filesystem>
#include <functional>

#include "diagnose/problem.hpp"
#include "io/npy.hpp"
#include "io/whole_file.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention::diagnose {

/// What a code returned for one case.
struct Answer {
  const Trial* problem;
  Arrays arrays;
};

/// The problems of a job; all cases, or those that are named.
inline std::vector<Trial> problems_of(const JobShape& job, const std::vector<std::string>& only = {}) {
  std::vector<Trial> problems;
  for (const DiagnoseCase& one : ladder(job))
    if (only.empty() || std::ranges::find(only, one.name) != only.end()) problems.emplace_back(one, job, 1);
  return problems;
}

/// A ring, as the list of mistakes calls it ("right": none), and what it returned.
struct Ran {
  std::string name;
  std::vector<Answer> answers;
};

/// Writes FOLDER/CASE with case.json and all arrays, for each case. \param folder  that of this ring
inline void save(const Ran& ring, const std::string& folder) {
  for (const Answer& answer : ring.answers) {
    const Trial& problem = *answer.problem;
    const DiagnoseCase& c = problem.the_case;
    const std::string here = folder + "/" + c.name;
    std::filesystem::create_directories(here);
    write_file(
        here + "/case.json",
        format(R"({"mutant": "%s", "ranks": %d, "placement": "%s", "ulysses": %d, )", ring.name.c_str(),
               problem.job.ranks, name(problem.job.placement).c_str(), problem.job.ulysses) +
            format(R"("case": "%s", "heads": %td, "kv_heads": %td})", c.name.c_str(), c.heads, c.kv_heads),
        "\n");
    const auto write = [&](const std::string& name, const Tensor<double>& array) {
      if (array.size() > 0) write_npy<double>(here + "/" + name + ".npy", array.view());
    };
    write("q", problem.q);
    write("k", problem.k);
    write("v", problem.v);
    write("dout", problem.dout);
    write("bias", problem.bias);
    for (const Array array : all_arrays) write(name(array), answer.arrays[array]);
  }
}

}  // namespace ring_attention::diagnose
