/// \file
/// `SavedCases`: the arrays of an attention in a folder that `ring-attention diagnose` reads.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/random_problem.hpp"

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
  void add(const std::string& of_case, const Arrays<T>& arrays);
  /// Adds a case with q, k, v and dout of a problem. \param ranges  the tokens of the arrays
  template <class T>
  void add(const std::string& of_case, const RandomProblem& problem, const TokenRanges& ranges,
           Arrays<T> results);

 private:
  std::string folder_;
  SavedJob job_;
  std::string cases_;  // as JSON
};

}  // namespace ring_attention
