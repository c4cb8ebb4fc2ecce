/// \file
/// `SharedFile`: a file of MPI-IO, its errors as InputError.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention {

enum class FileAccess { read, write };

/// An existing file, opened by one rank for itself, so that nothing here waits for another rank. The first
/// failure is kept, and later data may be wrong. `check_size` or `close` throws it; between these two calls the
/// ranks may exchange what they read or write.
class SharedFile {
 public:
  /// \param rank names this rank in errors
  SharedFile(int rank, std::string path, FileAccess access);
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile();

  /// No failure so far.
  [[nodiscard]] bool sound() const { return !failure_; }

  /// \throws InputError unless the file was opened and has this size.
  void check_size(Index bytes);

  /// \pre `bytes` are no more than an int counts.
  void read(Index offset, std::span<std::byte> bytes);
  void write(Index offset, std::span<const std::byte> bytes);

  /// \throws InputError for the first failure, of closing or before: a file system may report only here that it
  /// could not store what was written.
  void close();

 private:
  void note(int code);
  void note_moved(int code, const MPI_Status& status, int asked);
  void note_failure(const std::string& problem);
  void throw_failure() const;

  MPI_File file_ = MPI_FILE_NULL;
  int rank_;
  std::string path_;
  FileAccess access_;
  std::optional<InputError> failure_;
};

}  // namespace ring_attention
