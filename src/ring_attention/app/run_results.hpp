/// \file
/// `RunResults`: the output files of a run, all or none.
#pragma once

#include <optional>
#include <string>

#include "ring_attention/app/run_input.hpp"
#include "ring_attention/attention/partial.hpp"

namespace ring_attention {

/// out.npy, lse.npy and report.json in one directory. Opened before the work starts, so that a full disk or
/// a wrong directory shows first; renamed at the end, report.json last, so that its presence means a whole
/// set. Destroyed without commit, it leaves the files of earlier runs as they were. Collective throughout.
class RunResults {
 public:
  /// \param directory  made if missing
  /// \throws AgreedError
  RunResults(const Communicator& comm, const std::string& directory, const RunInput& input, Dtype dtype);

  /// Writes this rank's tokens.
  template <class T>
  void write(const Attended<T>& got, const Runs& runs) {
    out_->write<T>(got.out, runs);
    lse_->write<T>(got.lse, runs);
  }

  /// Writes the report and gives all files their names.
  void commit(const std::string& report);

 private:
  const Communicator& comm_;
  std::string directory_;
  std::optional<NpyWriter> out_, lse_;
};

}  // namespace ring_attention
