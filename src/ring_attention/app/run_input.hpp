/// \file
/// `RunInput`: the arrays of a run, from files or from a seed, a shard or a head at a time.
#pragma once

#include <optional>

#include "ring_attention/app/random_problem.hpp"
#include "ring_attention/app/run_options.hpp"
#include "ring_attention/mpi/npy_file.hpp"

namespace ring_attention {

/// Knows the shapes and the types; reads only what it is asked for. All ranks construct it together.
class RunInput {
 public:
  /// Opens the files (or prepares the generator) and checks that shapes and types belong together.
  /// \throws AgreedError on all ranks. Collective.
  RunInput(const Communicator& comm, const RunOptions& options);

  [[nodiscard]] const Shape& q() const { return problem_.q; }
  [[nodiscard]] const Shape& kv() const { return problem_.kv; }
  [[nodiscard]] const Scoring& scoring() const { return problem_.scoring; }
  /// Is the arithmetic in double?
  [[nodiscard]] bool is_double() const { return is_double_; }
  /// Dimensions of the q file: the results have as many.
  [[nodiscard]] std::size_t dimensions() const { return dimensions_; }

  template <class T>
  [[nodiscard]] Tensor<T> queries(const Placement& placement, int rank);
  template <class T>
  [[nodiscard]] KvParcel<T> parcel(const Placement& placement, int rank);
  /// All keys (or values) of one KV head, [1, 1, Sk, D], in double after rounding to T: for the oracle.
  template <class T>
  [[nodiscard]] Tensor<double> whole_head(bool values, Index batch, Index head);

  /// Counts NaN and infinities of this rank's shards of q, k and v, and reduces: one line an array that
  /// has any, naming the first element; empty when all is finite. Collective.
  template <class T>
  [[nodiscard]] std::vector<std::string> non_finite(const Communicator& comm, const Placement& queries,
                                                    const Placement& keys, const Tensor<T>& q,
                                                    KvParcel<T>& kv) const;

 private:
  void open(const Communicator& comm, const RunOptions& options);

  RandomProblem problem_;
  bool is_double_ = false;
  std::size_t dimensions_ = 4;
  std::vector<std::string> names_{"q", "k", "v"};
  std::optional<NpyReader> q_, k_, v_;  // empty with --random
};

}  // namespace ring_attention
