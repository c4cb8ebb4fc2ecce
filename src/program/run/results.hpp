/// \file
/// `RunResults`: the output files of a run, all or none.
#pragma once

#include <list>
#include <string>

#include "io/npy.hpp"
#include "io/npy_file.hpp"

namespace ring_attention {

/// out.npy, lse.npy, dq.npy and so on, and report.json, in one directory. Opened before the work starts, so
/// that a full disk or a wrong directory is found first. commit() renames the files, report.json last: where
/// it is, the set is complete. Without commit the files of earlier runs stay as they were. Temporary files that a
/// killed run left in the directory are removed.
/// Collective throughout.
class RunResults {
 public:
  /// \param directory  made if missing
  /// \throws AgreedError
  RunResults(const Communicator& comm, const std::string& directory);
  RunResults(const RunResults&) = delete;
  RunResults& operator=(const RunResults&) = delete;
  ~RunResults();

  /// Announces `name`.npy for an array of this shape.
  void add(const std::string& name, const Shape& shape, const std::vector<Index>& extents, Dtype dtype);

  /// Writes this rank's tokens of `name`.
  template <class T>
  void write(const std::string& name, View<const T> shard, const TokenRanges& ranges) {
    writer(name).write(shard, ranges);
  }

  /// Writes the report and gives all files their names.
  void commit(const std::string& report);

  /// `out.npy, lse.npy and report.json`
  [[nodiscard]] std::string names() const;

 private:
  [[nodiscard]] std::string path(const std::string& name) const { return directory_ + "/" + name; }
  [[nodiscard]] NpyWriter& writer(const std::string& name);

  const Communicator& comm_;
  std::string directory_;
  std::list<NpyWriter> writers_;
};

}  // namespace ring_attention
