#include "io/npy_transfer.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "io/shared_file.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {
namespace {

/// The elements of an array's file for one rank. A View<const T> is written to it, a View<T> is read from it.
template <class T>
class NpyElements {
  static constexpr bool writes = std::is_const_v<T>;

 public:
  NpyElements(const Communicator& comm, const NpyArray& array)
      : array_(array), file_(comm.rank(), array.path, writes ? FileAccess::write : FileAccess::read) {
    file_.require_size(array.header.file_bytes());
  }

  /// Moves contiguous elements, from a row of the array seen as a matrix [batch * heads * seq, dim] on, and converts
  /// them.
  void move(Index row, std::span<T> elements) {
    const Dtype dtype = array_.header.dtype;
    const auto bytes_each = static_cast<std::size_t>(element_bytes(dtype));
    Index offset = array_.header.payload_offset + row * array_.row_bytes();
    while (!elements.empty()) {
      const std::size_t n = std::min(elements.size(), staging_bytes / bytes_each);
      staging_.resize(std::max(staging_.size(), n * bytes_each));
      const std::span<std::byte> bytes = std::span(staging_).first(n * bytes_each);
      if constexpr (writes) {
        encode_elements<std::remove_const_t<T>>(dtype, elements.first(n), bytes);
        file_.write(offset, bytes);
      } else {
        file_.read(offset, bytes);
        decode_elements<T>(dtype, bytes, elements.first(n));
      }
      offset += static_cast<Index>(bytes.size());
      elements = elements.subspan(n);
    }
  }

  void close() { file_.close(); }

 private:
  /// The memory that a transfer needs beside the shard.
  static constexpr std::size_t staging_bytes = std::size_t{8} << 20U;

  const NpyArray& array_;
  SharedFile file_;
  std::vector<std::byte> staging_;
};

/// Some rows of an array in memory for each rank, and their bytes side by side, as they travel.
class RowsByRank {
 public:
  explicit RowsByRank(Index row_bytes) : row_bytes_(static_cast<std::size_t>(row_bytes)) {}

  void set(std::vector<TokenRanges> rows) {
    rows_ = std::move(rows);
    counts_.clear();
    begins_ = {0};
    for (const TokenRanges& of_rank : rows_) {
      counts_.push_back(static_cast<int>(static_cast<std::size_t>(count(of_rank)) * row_bytes_));
      begins_.push_back(begins_.back() + counts_.back());
    }
    packed_.resize(static_cast<std::size_t>(begins_.back()));
  }

  void pack(const void* array) {
    for_each_row([&](std::byte* packed, std::size_t place) {
      std::memcpy(packed, static_cast<const std::byte*>(array) + place, row_bytes_);
    });
  }
  void unpack(void* array) {
    for_each_row([&](const std::byte* packed, std::size_t place) {
      std::memcpy(static_cast<std::byte*>(array) + place, packed, row_bytes_);
    });
  }
  void receive(const RowsByRank& sent, const Communicator& comm) {
    check_mpi(MPI_Alltoallv(sent.packed_.data(), sent.counts_.data(), sent.begins_.data(), MPI_BYTE,
                            packed_.data(), counts_.data(), begins_.data(), MPI_BYTE, comm.handle()));
  }

 private:
  void for_each_row(const auto& visit) {
    std::byte* next = packed_.data();
    for (const TokenRanges& of_rank : rows_)
      for (const TokenRange& range : of_rank)
        for (Index i = 0; i < range.count; ++i, next += row_bytes_)
          visit(next, static_cast<std::size_t>(range.position(i)) * row_bytes_);
  }

  std::vector<TokenRanges> rows_;
  std::size_t row_bytes_;
  std::vector<std::byte> packed_;
  std::vector<int> counts_, begins_;
};

/// The tokens of a shard in some rows of the array seen as a matrix: for each piece of a range of a head the rows of
/// the shard, and those of the array less rows.begin.
struct RowsWithin {
  RowsWithin(const TokenRanges& ranges, Index seq, Interval rows) {
    for (Index head = rows.begin / seq; head * seq < rows.end; ++head) {
      Index shard_row = head * count(ranges);
      for (const TokenRange& range : ranges) {
        const TokenRange there{head * seq + range.begin - rows.begin, range.stride, range.count};
        const Index skipped = there.before(0), taken = there.before(rows.end - rows.begin) - skipped;
        if (taken > 0) in_array.push_back(there.slice(skipped, taken));
        if (taken > 0) in_shard.push_back({shard_row + skipped, 1, taken});
        shard_row += range.count;
      }
    }
  }
  TokenRanges in_shard, in_array;
};

/// Ranges of any stride: the tokens of all ranks interleave in the file, and one token is too small for a transfer of
/// its own. So each rank reads or writes long sections of the file with tokens of any ranks, and the ranks exchange
/// tokens in memory ("two-phase" input and output; del Rosario, Bordawekar, Choudhary 1993). MPI's own collective
/// transfers do the same behind a file view, but took microseconds a token.
template <class T>
void transfer_interleaved(const Communicator& comm, const NpyArray& array, View<T> shard,
                          const TokenRanges& ranges) {
  const Index seq = array.shape.seq, dim = array.shape.dim, rows = array.shape.per_row().size();
  const Index row_bytes = dim * static_cast<Index>(sizeof(T));
  require(row_bytes <= std::numeric_limits<int>::max(), "a token of more than 2^31 bytes");
  // MPI's int counts the bytes of a window of a section a rank.
  const Index most_rows = std::min(Index{4} << 20U, (Index{1} << 30U) / comm.size()) / row_bytes;
  const Index section_rows =
      std::clamp<Index>((rows + comm.size() - 1) / comm.size(), 1, std::max<Index>(1, most_rows));
  std::vector<TokenRanges> ranges_of(static_cast<std::size_t>(comm.size()), ranges);
  for (std::size_t rank = 0; rank < ranges_of.size(); ++rank)
    broadcast(comm, ranges_of[rank], static_cast<int>(rank));

  RowsByRank in_section(row_bytes), in_shard(row_bytes);
  std::vector<std::remove_const_t<T>> elements;  // of this rank's section
  std::optional<NpyElements<T>> file;
  agree(comm, [&] { file.emplace(comm, array); });
  for (Index first = 0; first < rows; first += section_rows * comm.size()) {
    const auto section = [&](int rank) {
      return Interval{std::min(rows, first + rank * section_rows),
                      std::min(rows, first + (rank + 1) * section_rows)};
    };
    const Interval window{first, section(comm.size() - 1).end}, mine = section(comm.rank());
    if (std::ranges::all_of(ranges_of, [&](const TokenRanges& held) {
          return RowsWithin(held, seq, window).in_array.empty();
        }))
      continue;
    std::vector<TokenRanges> here, there;
    for (int rank = 0; rank < comm.size(); ++rank) {
      here.push_back(RowsWithin(ranges_of[static_cast<std::size_t>(rank)], seq, mine).in_array);
      there.push_back(RowsWithin(ranges, seq, section(rank)).in_shard);
    }
    in_section.set(std::move(here));
    in_shard.set(std::move(there));
    elements.assign(static_cast<std::size_t>((mine.end - mine.begin) * dim), 0);
    if constexpr (std::is_const_v<T>) {
      in_shard.pack(shard.data());
      in_section.receive(in_shard, comm);
      in_section.unpack(elements.data());
    }
    agree(comm, [&] { file->move(mine.begin, elements); });
    if constexpr (!std::is_const_v<T>) {
      in_section.pack(elements.data());
      in_shard.receive(in_section, comm);
      in_shard.unpack(shard.data());
    }
  }
  agree(comm, [&] { file->close(); });
}

}  // namespace

template <class T>
void transfer_contiguous(const Communicator& comm, const NpyArray& array, Index first_head, View<T> shard,
                         const TokenRanges& ranges) {
  agree(comm, [&] {
    if (shard.size() == 0) return;
    NpyElements<T> file(comm, array);
    T* next = shard.data();
    for (Index head = first_head; head < first_head + shard.shape().batch * shard.shape().heads; ++head)
      for (const TokenRange& range : ranges) {
        const Index elements = range.count * array.shape.dim;
        file.move(head * array.shape.seq + range.begin, {next, static_cast<std::size_t>(elements)});
        next += elements;
      }
    file.close();
  });
}

template <class T>
void transfer_shard(const Communicator& comm, const NpyArray& array, View<T> shard,
                    const TokenRanges& ranges) {
  for (const TokenRange& range : ranges)
    require(range.count >= 0 && range.stride >= 1 &&
                (range.count == 0 || (range.begin >= 0 && range.end() <= array.shape.seq)),
            "a token range leaves the sequence of " + std::to_string(array.shape.seq) + " tokens");
  require(shard.shape() == array.shape.with_seq(count(ranges)),
          "the shard " + to_string(shard.shape()) + " does not hold " + std::to_string(count(ranges)) +
              " tokens of " + to_string(array.shape));
  const bool contiguous = std::ranges::all_of(
      ranges, [](const TokenRange& range) { return range.stride == 1 || range.count <= 1; });
  if (all_of_ranks(comm, contiguous))
    transfer_contiguous(comm, array, 0, shard, ranges);
  else
    transfer_interleaved(comm, array, shard, ranges);
}

template void transfer_contiguous(const Communicator&, const NpyArray&, Index, View<float>,
                                  const TokenRanges&);
template void transfer_contiguous(const Communicator&, const NpyArray&, Index, View<double>,
                                  const TokenRanges&);
template void transfer_shard(const Communicator&, const NpyArray&, View<float>, const TokenRanges&);
template void transfer_shard(const Communicator&, const NpyArray&, View<double>, const TokenRanges&);
template void transfer_shard(const Communicator&, const NpyArray&, View<const float>, const TokenRanges&);
template void transfer_shard(const Communicator&, const NpyArray&, View<const double>, const TokenRanges&);

}  // namespace ring_attention
