#include "io/npy_file.hpp"

#include <filesystem>
#include <fstream>

#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {
namespace {

/// A header, and zeros up to the full size, for which a file system reserves no space yet.
void make_file(const std::string& path, const std::string& beginning, Index bytes) {
  std::error_code error, ignored;
  std::filesystem::remove(path, ignored);  // of an earlier run; if this fails, opening it gives the reason
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  out.close();
  if (!out)
    error = std::error_code(errno, std::generic_category());
  else
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(bytes), error);
  if (!error) return;
  std::filesystem::remove(path, ignored);
  throw InputError(path, "cannot be written: " + error.message(),
                   "check the directory, and the space on the disk");
}

}  // namespace

NpyReader::NpyReader(const Communicator& comm, std::string path) : comm_(&comm), path_(std::move(path)) {
  std::vector<Index> fields;
  agree(comm, [&] {
    if (comm.rank() != 0) return;
    header_ = read_npy_header(path_);
    check_floating_point(header_, path_);
    (void)array_shape(header_, path_);
    fields = {static_cast<Index>(header_.dtype), header_.payload_offset};
    fields.insert(fields.end(), header_.extents.begin(), header_.extents.end());
  });
  broadcast(comm, fields);
  header_ = {static_cast<Dtype>(fields[0]), {fields.begin() + 2, fields.end()}, fields[1]};
  shape_ = array_shape(header_, path_);
}

NpyWriter::NpyWriter(const Communicator& comm, std::string path, const Shape& shape,
                     std::vector<Index> extents, Dtype dtype)
    : comm_(comm), path_(std::move(path)), shape_(shape), header_{dtype, std::move(extents), 0} {
  require(header_.elements() == shape.size(),
          "NpyWriter: the extents do not multiply to the size of " + to_string(shape));
  require(dtype == Dtype::float32 || dtype == Dtype::float64, "NpyWriter: float32 and float64 only");
  const std::string beginning = format_npy_header(dtype, header_.extents);
  header_.payload_offset = static_cast<Index>(beginning.size());
  agree(comm, [&] {
    if (comm.rank() == 0) make_file(temporary_name(path_), beginning, header_.file_bytes());
  });
}

NpyWriter::~NpyWriter() {
  std::error_code ignored;
  if (comm_.rank() == 0 && !committed_) std::filesystem::remove(temporary_name(path_), ignored);
}

void commit(const Communicator& comm, const std::vector<NpyWriter*>& writers) {
  for (const NpyWriter* writer : writers)
    require(writer->written_, "commit: " + writer->path_ + " was not written");
  agree(comm, [] {});  // every rank is in commit, so every file is complete
  agree(comm, [&] {
    if (comm.rank() != 0) return;
    for (NpyWriter* writer : writers) {
      std::error_code error;
      std::filesystem::rename(temporary_name(writer->path_), writer->path_, error);
      if (error)
        throw InputError(writer->path_, "cannot be written: " + error.message(), "check the directory");
      writer->committed_ = true;
    }
  });
  for (NpyWriter* writer : writers) writer->committed_ = true;
}

}  // namespace ring_attention
