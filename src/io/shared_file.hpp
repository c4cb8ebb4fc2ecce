/// \file
/// `SharedFile`: reads and writes of a file that the ranks share, their errors as InputError.
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <string>
#include <system_error>
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
    const int mode = access == FileAccess::write ? O_WRONLY : O_RDONLY;
    do {
      file_ = ::open(path_.c_str(), mode | O_CLOEXEC);
    } while (file_ < 0 && errno == EINTR);
    check(file_ >= 0);
  }
  SharedFile(const SharedFile&) = delete;
  ~SharedFile() {
    if (file_ >= 0) ::close(file_);
  }

  void require_size(Index bytes) const {
    struct stat found{};
    check(::fstat(file_, &found) == 0);
    if (found.st_size != bytes)
      fail("finds " + std::to_string(found.st_size) + " bytes where rank 0 found " + std::to_string(bytes) +
           " in");
  }

  void read(Index offset, std::span<std::byte> bytes) const { move(::pread, offset, bytes); }
  void write(Index offset, std::span<const std::byte> bytes) const { move(::pwrite, offset, bytes); }

  /// A file system may report only here that it could not store what was written.
  void close() {
    // Interrupted, it has closed the file all the same.
    check(::close(std::exchange(file_, -1)) == 0 || errno == EINTR);
  }

 private:
  static_assert(sizeof(off_t) >= sizeof(Index), "a file may be longer than 2^31 bytes");

  /// One call may move less than all, and a signal may interrupt it.
  void move(auto* transfer, Index offset, auto bytes) const {
    std::size_t moved = 0;
    while (moved < bytes.size()) {
      const ssize_t now = transfer(file_, bytes.data() + moved, bytes.size() - moved,
                                   static_cast<off_t>(offset + static_cast<Index>(moved)));
      if (now < 0 && errno == EINTR) continue;
      check(now >= 0);
      if (now == 0)
        fail("moved " + std::to_string(moved) + " bytes where " + std::to_string(bytes.size()) + " were due");
      moved += static_cast<std::size_t>(now);
    }
  }
  void check(bool done) const {
    if (!done)
      fail(std::string("cannot ") + (access_ == FileAccess::write ? "write" : "read") +
           " it: " + std::generic_category().message(errno));
  }
  [[noreturn]] void fail(const std::string& problem) const {
    throw InputError(path_, "rank " + std::to_string(rank_) + " " + problem,
                     access_ == FileAccess::write
                         ? "check the directory, and the space on the disk"
                         : "all ranks need the same file, on a file system that all hosts share");
  }

  int file_ = -1;
  const int rank_;
  const std::string path_;
  const FileAccess access_;
};

}  // namespace ring_attention
