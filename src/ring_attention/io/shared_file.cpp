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
  const int code = MPI_File_open(MPI_COMM_SELF, name_for_mpi(path_).c_str(), mode, MPI_INFO_NULL, &file_);
  if (code != MPI_SUCCESS) file_ = MPI_FILE_NULL;
  note(code);
}

SharedFile::~SharedFile() {
  if (file_ != MPI_FILE_NULL) MPI_File_close(&file_);
}

void SharedFile::check_size(Index bytes) {
  throw_failure();
  MPI_Offset found = 0;
  note(MPI_File_get_size(file_, &found));
  if (sound() && found != bytes)
    note_failure("finds " + std::to_string(found) + " bytes where rank 0 found " + std::to_string(bytes) +
                 " in");
  throw_failure();
}

void SharedFile::read(Index offset, std::span<std::byte> bytes) {
  if (!sound()) return;
  const int asked = static_cast<int>(bytes.size());
  MPI_Status status;
  const int code = MPI_File_read_at(file_, offset, bytes.data(), asked, MPI_BYTE, &status);
  note_moved(code, status, asked);
}

void SharedFile::write(Index offset, std::span<const std::byte> bytes) {
  if (!sound()) return;
  const int asked = static_cast<int>(bytes.size());
  MPI_Status status;
  const int code = MPI_File_write_at(file_, offset, bytes.data(), asked, MPI_BYTE, &status);
  note_moved(code, status, asked);
}

void SharedFile::close() {
  const int code = MPI_File_close(&file_);
  file_ = MPI_FILE_NULL;
  note(code);
  throw_failure();
}

void SharedFile::note(int code) {
  if (code != MPI_SUCCESS)
    note_failure(std::string("cannot ") + (access_ == FileAccess::write ? "write" : "read") +
                 " it: " + reason(code));
}

void SharedFile::note_moved(int code, const MPI_Status& status, int asked) {
  note(code);
  if (code != MPI_SUCCESS) return;
  int moved = 0;
  MPI_Get_count(&status, MPI_BYTE, &moved);
  if (moved != asked)
    note_failure("moved " + std::to_string(moved) + " bytes where " + std::to_string(asked) + " were due");
}

void SharedFile::note_failure(const std::string& problem) {
  if (failure_) return;
  failure_.emplace(path_, "rank " + std::to_string(rank_) + " " + problem,
                   access_ == FileAccess::write
                       ? "check the directory, and the space on the disk"
                       : "all ranks need the same file, on a file system that all hosts share");
}

void SharedFile::throw_failure() const {
  if (failure_) throw *failure_;
}

}  // namespace ring_attention
