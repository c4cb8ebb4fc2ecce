#include "ring_attention/io/npy_file.hpp"

#include <filesystem>
#include <fstream>

#include "ring_attention/core/error.hpp"
#include "ring_attention/io/npy_transfer.hpp"

namespace ring_attention {
namespace {

/// From rank 0 to all.
void broadcast(const Communicator& comm, NpyHeader& header) {
  std::vector<Index> fields{static_cast<Index>(header.dtype), header.payload_offset};
  fields.insert(fields.end(), header.extents.begin(), header.extents.end());
  auto count = static_cast<int>(fields.size());
  check_mpi(MPI_Bcast(&count, 1, MPI_INT, 0, comm.handle()));
  fields.resize(static_cast<std::size_t>(count));
  check_mpi(MPI_Bcast(fields.data(), count, MPI_INT64_T, 0, comm.handle()));
  header.dtype = static_cast<Dtype>(fields[0]);
  header.payload_offset = fields[1];
  header.extents.assign(fields.begin() + 2, fields.end());
}

NpyPayload payload_of(const std::string& path, const NpyHeader& header, const Shape& shape) {
  return {path, header.dtype, header.payload_offset, header.file_bytes(), shape};
}

/// A header, and zeros up to the full size, for which a file system reserves no space yet.
void make_file(const std::string& path, const std::string& beginning, Index bytes) {
  std::error_code error;
  std::filesystem::remove(path,
                          error);  // of an earlier run; if this fails, opening the file gives the reason
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(beginning.data(), static_cast<std::streamsize>(beginning.size()));
  out.close();
  if (!out) {
    error = std::error_code(errno, std::generic_category());
  } else {
    std::filesystem::resize_file(path, static_cast<std::uintmax_t>(bytes), error);
  }
  if (!error) return;
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  throw InputError(path, "cannot be written: " + error.message(),
                   "check the directory, and the space on the disk");
}

}  // namespace

NpyReader::NpyReader(const Communicator& comm, std::string path) : comm_(&comm), path_(std::move(path)) {
  agree(comm, [&] {
    if (comm.rank() != 0) return;
    header_ = read_npy_header(path_);
    check_floating_point(header_, path_);
    shape_ = array_shape(header_, path_);
  });
  broadcast(comm, header_);
  shape_ = array_shape(header_, path_);
}

template <class T>
void NpyReader::read(View<T> shard, const TokenRanges& ranges) const {
  transfer_shard(*comm_, payload_of(path_, header_, shape_), shard, ranges);
}
template void NpyReader::read(View<float>, const TokenRanges&) const;
template void NpyReader::read(View<double>, const TokenRanges&) const;

template <class T>
void NpyReader::read_head(Index batch, Index head, View<T> tokens) const {
  read_one_head(*comm_, payload_of(path_, header_, shape_), batch, head, tokens);
}
template void NpyReader::read_head(Index, Index, View<float>) const;
template void NpyReader::read_head(Index, Index, View<double>) const;

NpyWriter::NpyWriter(const Communicator& comm, std::string path, const Shape& shape,
                     std::vector<Index> extents, Dtype dtype)
    : comm_(&comm), path_(std::move(path)), shape_(shape), header_{dtype, std::move(extents), 0} {
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
  if (comm_->rank() == 0 && !committed_) std::filesystem::remove(temporary_name(path_), ignored);
}

template <class T>
void NpyWriter::write(View<const T> shard, const TokenRanges& ranges) {
  require(!written_, "NpyWriter: " + path_ + " was written already");
  transfer_shard(*comm_, payload_of(temporary_name(path_), header_, shape_), shard, ranges);
  written_ = true;
}
template void NpyWriter::write(View<const float>, const TokenRanges&);
template void NpyWriter::write(View<const double>, const TokenRanges&);

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
