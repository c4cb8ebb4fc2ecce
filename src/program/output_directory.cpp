#include "program/output_directory.hpp"

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "io/npy.hpp"
#include "io/whole_file.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

namespace fs = std::filesystem;

}  // namespace

void make_output_directory(const std::string& directory, const std::string& flag) {
  std::error_code failed;
  fs::create_directories(directory, failed);
  if (failed)
    throw InputError(flag + " " + directory, "cannot be made a directory: " + failed.message(),
                     "give another, or check what is in the way");
}

void require_no_directory(const std::string& file) {
  std::error_code ignored;
  for (const std::string& name : {file, temporary_name(file)})
    if (fs::is_directory(name, ignored))
      throw InputError(name, "is a directory where a file has to go", "move it, or give another --out");
}

void remove_leftovers(const std::string& directory, const std::vector<std::string>& files) {
  std::string removed;
  for (const std::string& file : files)
    if (const std::string name = temporary_name(file); remove_file(fs::path(directory) / name))
      removed += (removed.empty() ? "" : ", ") + name;
  if (!removed.empty())
    std::fprintf(stderr, "%s: removed %s, which a killed job left\n", directory.c_str(), removed.c_str());
}

}  // namespace ring_attention
