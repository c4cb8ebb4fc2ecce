#include "program/output_directory.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "io/npy.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

namespace fs = std::filesystem;

/// Removes a file, but no directory and no link: the program makes neither under such a name.
bool remove_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(fs::symlink_status(path, ignored)) && fs::remove(path, ignored);
}

bool is_number(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; }) &&
         (text.size() == 1 || text.front() != '0');
}

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

Index remove_rank_files(const std::string& file) {
  const fs::path path(file), folder = path.has_parent_path() ? path.parent_path() : ".";
  std::error_code ignored;
  if (!path.has_filename() || fs::is_directory(path, ignored)) return 0;
  const std::string prefix = path.filename().string() + ".rank";
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix) && is_number(std::string_view(name).substr(prefix.size())))
      found.push_back(entry.path());
  }
  return std::ranges::count_if(found, remove_file);
}

}  // namespace ring_attention
