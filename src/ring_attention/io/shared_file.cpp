#include "ring_attention/io/shared_file.hpp"

#include <utility>

namespace ring_attention {
namespace {

/// MPI's text for an error in one line, without the history of calls that MPICH puts before it.
std::string reason(int code) {
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<std::size_t>(length));
  for (const std::string front : {"\n", "): ", "Other I/O error "})
    if (const auto at = text.rfind(front); at != std::string::npos && at + front.size() < text.size())
      text.erase(0, at + front.size());
  return text;
}

/// MPICH takes the text before a colon for the name of a file system.
std::string name_for_mpi(const std::string& path) {
  return path.find(':') == std::string::npos ? path : "ufs:" + path;
}

}  // namespace

SharedFile::SharedFile(int rank, std::string path, FileAccess access)
    : rank_(rank), path_(std::move(path)), access_(access) {
  const int mode = access == FileAccess::write ? MPI_MODE_WRONLY : MPI_MODE_RDONLY;
  check(MPI_File_open(MPI_COMM_SELF, name_for_mpi(path_).c_str(), mode, MPI_INFO_NULL, &file_));
}

SharedFile::~SharedFile() {
  if (file_ != MPI_FILE_NULL) MPI_File_close(&file_);
}

void SharedFile::require_size(Index bytes) {
  MPI_Offset found = 0;
  check(MPI_File_get_size(file_, &found));
  if (found != bytes)
    fail("finds " + std::to_string(found) + " bytes where rank 0 found " + std::to_string(bytes) + " in");
}

void SharedFile::read(Index offset, std::span<std::byte> bytes) {
  MPI_Status status;
  const int due = static_cast<int>(bytes.size());
  check_moved(MPI_File_read_at(file_, offset, bytes.data(), due, MPI_BYTE, &status), status, bytes.size());
}

void SharedFile::write(Index offset, std::span<const std::byte> bytes) {
  MPI_Status status;
  const int due = static_cast<int>(bytes.size());
  check_moved(MPI_File_write_at(file_, offset, bytes.data(), due, MPI_BYTE, &status), status, bytes.size());
}

void SharedFile::close() {
  const int code = MPI_File_close(&file_);
  file_ = MPI_FILE_NULL;
  check(code);
}

void SharedFile::check(int code) const {
  if (code != MPI_SUCCESS)
    fail(std::string("cannot ") + (access_ == FileAccess::write ? "write" : "read") + " it: " + reason(code));
}

void SharedFile::check_moved(int code, const MPI_Status& status, std::size_t due) const {
  check(code);
  int moved = 0;
  MPI_Get_count(&status, MPI_BYTE, &moved);
  if (moved != static_cast<int>(due))
    fail("moved " + std::to_string(moved) + " bytes where " + std::to_string(due) + " were due");
}

void SharedFile::fail(const std::string& problem) const {
  throw InputError(path_, "rank " + std::to_string(rank_) + " " + problem,
                   access_ == FileAccess::write
                       ? "check the directory, and the space on the disk"
                       : "all ranks need the same file, on a file system that all hosts share");
}

}  // namespace ring_attention
