/// \file
/// `SharedFile`: a file of MPI-IO, its errors as InputError.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>
#include <string>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention {

enum class FileAccess { read, write };

/// An existing file, opened by one rank for itself, so that nothing here waits for another rank.
/// Every function throws InputError, which names the rank, the file and the remedy.
class SharedFile {
 public:
  /// \param rank names this rank in errors
  SharedFile(int rank, std::string path, FileAccess access);
  SharedFile(const SharedFile&) = delete;
  ~SharedFile();

  void require_size(Index bytes);

  /// \pre `bytes` are no more than an int counts.
  void read(Index offset, std::span<std::byte> bytes);
  void write(Index offset, std::span<const std::byte> bytes);

  /// A file system may report only here that it could not store what was written.
  void close();

 private:
  void check(int code) const;
  void check_moved(int code, const MPI_Status& status, std::size_t due) const;
  [[noreturn]] void fail(const std::string& problem) const;

  MPI_File file_ = MPI_FILE_NULL;
  const int rank_;
  const std::string path_;
  const FileAccess access_;
};

}  // namespace ring_attention
