#include "program/output_directory.hpp"

#include <filesystem>
#include <system_error>

#include "ring_attention/core/error.hpp"
#include "ring_attention/io/npy.hpp"

namespace ring_attention {

void make_output_directory(const std::string& directory, const std::string& flag) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed)
    throw InputError(flag + " " + directory, "cannot be made a directory: " + failed.message(),
                     "give another, or check what is in the way");
}

void require_no_directory(const std::string& file) {
  std::error_code ignored;
  for (const std::string& name : {file, temporary_name(file)})
    if (std::filesystem::is_directory(name, ignored))
      throw InputError(name, "is a directory where a file has to go", "move it, or give another --out");
}

}  // namespace ring_attention
