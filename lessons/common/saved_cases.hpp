/// \file
/// `SavedCases`: the arrays of an attention in a folder that `ring-attention diagnose` reads.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "common/random_problem.hpp"
#include "io/npy.hpp"
#include "io/whole_file.hpp"
#include "ring_attention/core/text.hpp"

namespace ring_attention {

/// The ranks whose arrays are saved.
struct SavedJob {
  PlacementKind placement = PlacementKind::contiguous;
  int ranks = 1;
  int rank = -1;  ///< this one; -1: one process has the whole arrays
  int ulysses = 1;
};

/// Writes FOLDER/CASE/NAME.npy, or NAME.RANK.npy of each rank, and FOLDER/cases.json.
class SavedCases {
 public:
  template <class T>
  using Arrays = std::vector<std::pair<std::string, View<const T>>>;

  /// \param folder  empty: nothing is written
  SavedCases(std::string folder, const SavedJob& job) : folder_(std::move(folder)), job_(job) {}

  /// \param of_case  of docs/diagnose.md; the arrays take the place of its own
  /// \param arrays   q, k, v, dout, bias and sinks, as far as the case has them; out, lse, dq, dk, dv. Empty ones are left out
  template <class T>
  void add(const std::string& of_case, const Arrays<T>& arrays) {
    if (folder_.empty()) return;
    const std::string here = folder_ + "/" + of_case;
    std::filesystem::create_directories(here);
    const std::string ending = job_.rank < 0 ? ".npy" : format(".%d.npy", job_.rank);
    for (const auto& [name, array] : arrays)
      if (array.shape() != Shape{} && array.shape().heads > 0)
        write_npy<T>(here + "/" + name + ending, array);
    cases_ += format(R"(%s{"name": "%s"})", cases_.empty() ? "" : ", ", of_case.c_str());
    if (job_.rank > 0) return;
    write_file(folder_ + "/cases.json",
               format(R"({"ranks": %d, "placement": "%s", "ulysses": %d, "seed": 1, "own_arrays": true, )",
                      job_.ranks, name(job_.placement).c_str(), job_.ulysses) +
                   R"("cases": [)" + cases_ + "]}\n",
               "\n");
  }
  /// Adds a case with q, k, v and dout of a problem. \param ranges  the tokens of the arrays
  template <class T>
  void add(const std::string& of_case, const RandomProblem& problem, const TokenRanges& ranges,
           Arrays<T> results) {
    if (folder_.empty()) return;
    const Tensor<T> q = problem.make<T>(problem.q, 0, ranges), k = problem.make<T>(problem.kv, 1, ranges),
                    v = problem.make<T>(problem.kv, 2, ranges), dout = problem.make<T>(problem.q, 3, ranges);
    results.insert(results.end(), {{"q", q}, {"k", k}, {"v", v}, {"dout", dout}});
    add<T>(of_case, results);
  }

 private:
  std::string folder_;
  SavedJob job_;
  std::string cases_;  // as JSON
};

}  // namespace ring_attention
