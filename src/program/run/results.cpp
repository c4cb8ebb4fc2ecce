#include "program/run/results.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "io/whole_file.hpp"
#include "program/output_directory.hpp"
#include "program/run/report.hpp"

namespace ring_attention {
namespace {

/// Writes `report` to a temporary file and removes the old one, which describes files that are replaced next.
void prepare_report(const std::string& path, const std::string& report) {
  write_file(temporary_name(path), report);
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

void publish_report(const std::string& path) {
  std::error_code failed;
  std::filesystem::rename(temporary_name(path), path, failed);
  if (failed) throw InputError(path, "cannot be written: " + failed.message(), "check the directory");
}

}  // namespace

RunResults::RunResults(const Communicator& comm, const std::string& directory)
    : comm_(comm), directory_(directory) {
  agree(comm, [&] {
    if (comm.rank() != 0) return;
    make_output_directory(directory);
    require_no_directory(path("report.json"));
    std::vector<std::string> files{"report.json"};
    for (std::size_t i = 0; i < result_count; ++i) files.push_back(result_name(i) + ".npy");
    remove_leftovers(directory, files);
  });
}

RunResults::~RunResults() {
  std::error_code ignored;
  if (comm_.rank() == 0) std::filesystem::remove(temporary_name(path("report.json")), ignored);
}

void RunResults::add(const std::string& name, const Shape& shape, const std::vector<Index>& extents,
                     Dtype dtype) {
  agree(comm_, [&] {
    if (comm_.rank() == 0) require_no_directory(path(name + ".npy"));
  });
  writers_.emplace_back(comm_, path(name + ".npy"), shape, extents, dtype);
}

NpyWriter& RunResults::writer(const std::string& name) {
  const auto found = std::find_if(writers_.begin(), writers_.end(), [&](const NpyWriter& writer) {
    return writer.path() == path(name + ".npy");
  });
  require(found != writers_.end(), "RunResults: " + name + " was not announced");
  return *found;
}

void RunResults::commit(const std::string& report) {
  const std::string report_path = path("report.json");
  agree(comm_, [&] {
    if (comm_.rank() == 0) prepare_report(report_path, report);
  });
  std::vector<NpyWriter*> all;
  for (NpyWriter& writer : writers_) all.push_back(&writer);
  ring_attention::commit(comm_, all);
  agree(comm_, [&] {
    if (comm_.rank() == 0) publish_report(report_path);
  });
}

std::string RunResults::names() const {
  std::string list;
  for (const NpyWriter& writer : writers_)
    list += (list.empty() ? "" : ", ") + writer.path().substr(directory_.size() + 1);
  return list + " and report.json";
}

}  // namespace ring_attention
