/// \file
/// `SharedFile`: a file of MPI-IO, its errors as InputError.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// Owns a datatype made by a constructor of MPI's; commits it.
class Datatype {
 public:
  explicit Datatype(MPI_Datatype type) : type_(type) { MPI_Type_commit(&type_); }
  Datatype(Datatype&& other) noexcept : type_(std::exchange(other.type_, MPI_DATATYPE_NULL)) {}
  Datatype(const Datatype&) = delete;
  Datatype& operator=(const Datatype&) = delete;
  ~Datatype() {
    if (type_ != MPI_DATATYPE_NULL) MPI_Type_free(&type_);
  }
  [[nodiscard]] MPI_Datatype handle() const { return type_; }

 private:
  MPI_Datatype type_;
};

enum class FileAccess { read, write };

/// An existing file, opened by all ranks of a communicator, or by one with MPI_COMM_SELF. Opening, closing,
/// destroying, `show` and transfers `together` are collective over that communicator. None of them throws
/// what only one rank may know: the first failure is kept until `check_size` or `close` throws it.
class SharedFile {
 public:
  /// \param rank names this rank in errors
  SharedFile(MPI_Comm comm, int rank, std::string path, FileAccess access);
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;
  ~SharedFile();

  /// No failure so far.
  [[nodiscard]] bool sound() const { return !failure_; }

  /// \throws InputError unless the file was opened and has this size.
  void check_size(Index bytes);

  /// Offsets now count the bytes that `rows` shows, again and again from `begin` on.
  void show(Index begin, const Datatype& rows);
  /// Offsets count all bytes, as after opening.
  void show_all();

  /// \pre `bytes` are no more than an int counts.
  void read(Index offset, std::span<std::byte> bytes, bool together);
  void write(Index offset, std::span<const std::byte> bytes, bool together);

  /// \throws InputError for the first failure, of closing or before: a file system may say only here that it
  /// could not keep what was written.
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
