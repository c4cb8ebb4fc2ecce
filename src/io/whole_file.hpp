/// \file
/// Whole files in one process. Every failure of the system is an InputError of one line: file, reason, remedy.
#pragma once

#include <limits>
#include <string>
#include <string_view>

#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// The remedy for a file that cannot be written.
inline constexpr const char* check_disk = "check the directory, and the space on the disk";

struct FileBytes {
  Index size;  ///< of the whole file
  std::string bytes;
};

/// The beginning of a file, of at most so many bytes.
/// \throws InputError also for a directory, for what is no file, and for more bytes than there is memory
[[nodiscard]] FileBytes read_file(const std::string& path, Index most = std::numeric_limits<Index>::max(),
                                  const std::string& remedy = "check the path");

/// Replaces a file by `first`, followed by `rest`. \throws InputError; the file may then hold a part
void write_file(const std::string& path, std::string_view first, std::string_view rest = {});

/// Removes a file, but no directory and no link. \returns whether it has
bool remove_file(const std::string& path);

}  // namespace ring_attention
