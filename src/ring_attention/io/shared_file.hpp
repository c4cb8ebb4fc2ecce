/// \file
/// `SharedFile`: a file of MPI-IO, its errors as InputError.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention {

enum class FileAccess { read, write };

/// An existing file, opened by one rank for itself, so that nothing here waits for another rank.
/// Every function throws InputError, which names the rank, the file and the remedy.
class SharedFile {
 public:
  /// \param rank names this rank in errors
  SharedFile(int rank, std::string path, FileAccess access)
      : rank_(rank), path_(std::move(path)), access_(access) {
    // MPICH takes the text before a colon for the name of a file system.
    const std::string name = path_.find(':') == std::string::npos ? path_ : "ufs:" + path_;
    const int mode = access == FileAccess::write ? MPI_MODE_WRONLY : MPI_MODE_RDONLY;
    check(MPI_File_open(MPI_COMM_SELF, name.c_str(), mode, MPI_INFO_NULL, &file_));
  }
  SharedFile(const SharedFile&) = delete;
  ~SharedFile() {
    if (file_ != MPI_FILE_NULL) MPI_File_close(&file_);
  }

  void require_size(Index bytes) const {
    MPI_Offset found = 0;
    check(MPI_File_get_size(file_, &found));
    if (found != bytes)
      fail("finds " + std::to_string(found) + " bytes where rank 0 found " + std::to_string(bytes) + " in");
  }

  /// \pre `bytes` are no more than an int counts.
  void read(Index offset, std::span<std::byte> bytes) const { move(MPI_File_read_at, offset, bytes); }
  void write(Index offset, std::span<const std::byte> bytes) const { move(MPI_File_write_at, offset, bytes); }

  /// A file system may report only here that it could not store what was written.
  void close() {
    const int code = MPI_File_close(&file_);
    file_ = MPI_FILE_NULL;
    check(code);
  }

 private:
  /// MPI's text for an error in one line, without the history of calls that MPICH puts before it.
  [[nodiscard]] static std::string reason(int code) {
    std::string text(MPI_MAX_ERROR_STRING, '\0');
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    text.resize(static_cast<std::size_t>(length));
    for (const std::string front : {"\n", "): ", "Other I/O error "})
      if (const auto at = text.rfind(front); at != std::string::npos && at + front.size() < text.size())
        text.erase(0, at + front.size());
    return text;
  }
  void move(auto* transfer, Index offset, auto bytes) const {
    MPI_Status status;
    int moved = 0;
    check(transfer(file_, offset, bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, &status));
    MPI_Get_count(&status, MPI_BYTE, &moved);
    if (moved != std::ssize(bytes))
      fail("moved " + std::to_string(moved) + " bytes where " + std::to_string(bytes.size()) + " were due");
  }
  void check(int code) const {
    if (code != MPI_SUCCESS)
      fail(std::string("cannot ") + (access_ == FileAccess::write ? "write" : "read") +
           " it: " + reason(code));
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw InputError(path_, "rank " + std::to_string(rank_) + " " + problem,
                     access_ == FileAccess::write
                         ? "check the directory, and the space on the disk"
                         : "all ranks need the same file, on a file system that all hosts share");
  }

  MPI_File file_ = MPI_FILE_NULL;
  const int rank_;
  const std::string path_;
  const FileAccess access_;
};

}  // namespace ring_attention
