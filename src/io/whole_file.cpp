#include "io/whole_file.hpp"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "ring_attention/core/allocation.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

/// The reason of the last failure of a stream.
std::string reason() { return std::generic_category().message(errno); }

}  // namespace

FileBytes read_file(const std::string& path, Index most, const std::string& remedy) {
  std::error_code failed;
  const std::uintmax_t size = std::filesystem::file_size(path, failed);
  if (failed) throw InputError(path, "cannot be read: " + failed.message(), remedy);
  std::ifstream in(path, std::ios::binary);
  if (!in) throw InputError(path, "cannot be read: " + reason(), remedy);
  FileBytes file{static_cast<Index>(size), {}};
  const Index wanted = std::min(file.size, most);
  if (!allocation::available(wanted))
    throw InputError(path,
                     "has " + std::to_string(wanted) + " bytes, more than this process can have of memory",
                     "give a smaller file");
  file.bytes.resize(static_cast<std::size_t>(wanted));
  if (!in.read(file.bytes.data(), static_cast<std::streamsize>(wanted)))
    throw InputError(path, "cannot be read to its end",
                     "check the disk, and that nothing is writing the file");
  return file;
}

void write_file(const std::string& path, std::string_view first, std::string_view rest) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  for (const std::string_view bytes : {first, rest}) out << bytes;
  out.close();
  if (!out) throw InputError(path, "cannot be written: " + reason(), check_disk);
}

bool remove_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(std::filesystem::symlink_status(path, ignored)) &&
         std::filesystem::remove(path, ignored);
}

}  // namespace ring_attention
