#include "ring_attention/app/run_results.hpp"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace ring_attention {
namespace {

void make_directory(const std::string& directory) {
  std::error_code failed;
  std::filesystem::create_directories(directory, failed);
  if (failed) throw InputError("cannot make the directory " + directory + ": " + failed.message());
}

/// Writes `report` beside `path` and takes the old one away: it would describe files about to be replaced.
void prepare_report(const std::string& path, const std::string& report) {
  std::ofstream file(temporary_name(path), std::ios::trunc);
  file << report << std::flush;
  if (!file) throw InputError("cannot write " + path + ": is the disk full?");
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
}

void publish_report(const std::string& path) {
  std::error_code failed;
  std::filesystem::rename(temporary_name(path), path, failed);
  if (failed) throw InputError("cannot write " + path + ": " + failed.message());
}

}  // namespace

RunResults::RunResults(const Communicator& comm, const std::string& directory, const RunInput& input,
                       Dtype dtype)
    : comm_(comm), directory_(directory) {
  agree(comm, [&] {
    if (comm.rank() == 0) make_directory(directory);
  });
  const Shape& out = input.q();
  const Shape lse = out.per_row();
  out_.emplace(comm, directory + "/out.npy", out, array_extents(out, input.dimensions()), dtype);
  lse_.emplace(comm, directory + "/lse.npy", lse, row_extents(lse, input.dimensions()), dtype);
}

void RunResults::commit(const std::string& report) {
  const std::string path = directory_ + "/report.json";
  agree(comm_, [&] {
    if (comm_.rank() == 0) prepare_report(path, report);
  });
  ring_attention::commit(comm_, {&*out_, &*lse_});
  agree(comm_, [&] {
    if (comm_.rank() == 0) publish_report(path);
  });
}

}  // namespace ring_attention
