// Striped shards: the tokens of all ranks interleave in the file, and one token is too small for a transfer of its own.
//
// So each rank reads or writes long sections of the file with tokens of any ranks, and the ranks exchange
// tokens in memory ("two-phase" input and output; del Rosario, Bordawekar, Choudhary 1993). MPI's own collective
// transfers do the same behind a file view, but took microseconds a token.

#include <algorithm>
#include <limits>
#include <vector>

#include "ring_attention/core/error.hpp"
#include "ring_attention/io/npy_transfer.hpp"

namespace ring_attention {
namespace {

/// Bytes of the file that a rank moves at a time; the exchange needs twice as much in addition. MPI's int counts the
/// bytes of all sections of a window.
Index section_bytes(const Communicator& comm) {
  return std::min(Index{2} << 20U, (Index{1} << 30U) / comm.size());
}

/// Rows begin <= row < end of an array seen as a matrix [batch * heads * seq, dim].
using Rows = Interval;

/// Calls visit(row of the shard, range of rows of the array) for the tokens of a shard in `rows`: a piece of each
/// range of each head, always in the same order.
template <class Visit>
void for_each_piece(const TokenRanges& ranges, Index seq, Rows rows, Visit&& visit) {
  for (Index head = rows.begin / seq; head * seq < rows.end; ++head) {
    Index shard_row = head * count(ranges);
    for (const TokenRange& range : ranges) {
      const TokenRange in_array{head * seq + range.begin, range.stride, range.count};
      const Index skipped = in_array.before(rows.begin);
      const Index taken = in_array.before(rows.end) - skipped;
      if (taken > 0) visit(shard_row + skipped, in_array.slice(skipped, taken));
      shard_row += range.count;
    }
  }
}

Index rows_within(const TokenRanges& ranges, Index seq, Rows rows) {
  Index total = 0;
  for_each_piece(ranges, seq, rows, [&](Index, const TokenRange& piece) { total += piece.count; });
  return total;
}

/// Every rank's ranges, on every rank.
std::vector<TokenRanges> gather_ranges(const Communicator& comm, const TokenRanges& ranges) {
  const auto ranks = static_cast<std::size_t>(comm.size());
  constexpr int words = 3;  // begin, stride, count
  static_assert(sizeof(TokenRange) == words * sizeof(Index));
  const int mine = static_cast<int>(ranges.size()) * words;
  std::vector<int> counts(ranks);
  std::vector<int> begins(ranks + 1);
  check_mpi(MPI_Allgather(&mine, 1, MPI_INT, counts.data(), 1, MPI_INT, comm.handle()));
  for (std::size_t r = 0; r < ranks; ++r) begins[r + 1] = begins[r] + counts[r];
  TokenRanges all(static_cast<std::size_t>(begins[ranks] / words));
  check_mpi(MPI_Allgatherv(ranges.data(), mine, MPI_INT64_T, all.data(), counts.data(), begins.data(),
                           MPI_INT64_T, comm.handle()));
  std::vector<TokenRanges> by_rank;
  for (std::size_t r = 0; r < ranks; ++r)
    by_rank.emplace_back(all.begin() + begins[r] / words, all.begin() + begins[r + 1] / words);
  return by_rank;
}

/// The bytes for each rank, or from each rank, in the order of ranks.
struct RankBytes {
  std::vector<std::byte> bytes;
  std::vector<int> counts, begins;

  explicit RankBytes(int ranks)
      : counts(static_cast<std::size_t>(ranks)), begins(static_cast<std::size_t>(ranks)) {}
  void set_count(int rank, Index value) {
    const auto r = static_cast<std::size_t>(rank);
    counts[r] = static_cast<int>(value);
    begins[r] = r == 0 ? 0 : begins[r - 1] + counts[r - 1];
    if (rank + 1 == static_cast<int>(counts.size()))
      bytes.resize(static_cast<std::size_t>(begins[r]) + static_cast<std::size_t>(counts[r]));
  }
};

template <class T>
class TwoPhaseTransfer {
  static constexpr bool writes = std::is_const_v<T>;

 public:
  TwoPhaseTransfer(const Communicator& comm, const NpyPayload& payload, View<T> shard,
                   const TokenRanges& ranges)
      : comm_(comm),
        payload_(payload),
        shard_(shard),
        ranges_(gather_ranges(comm, ranges)),
        row_bytes_(payload.row_bytes()),
        rows_(payload.shape.per_row().size()),
        rows_a_section_(std::clamp<Index>((rows_ + comm.size() - 1) / comm.size(), 1,
                                          std::max<Index>(1, section_bytes(comm) / row_bytes_))),
        file_(comm.rank(), payload.path, access_of<T>),
        owned_(comm.size()),
        held_(comm.size()) {
    require(rows_a_section_ * row_bytes_ <= std::numeric_limits<int>::max(),
            "a token of more than 2^31 bytes");
  }

  void run() {
    agree(comm_, [&] { file_.check_size(payload_.file_bytes); });
    for (Index first = 0; first < rows_; first += rows_a_section_ * comm_.size()) {
      const auto section = [&](int rank) {
        return Rows{std::min(rows_, first + rank * rows_a_section_),
                    std::min(rows_, first + (rank + 1) * rows_a_section_)};
      };
      if (!anything_within({first, section(comm_.size() - 1).end})) continue;
      for (int r = 0; r < comm_.size(); ++r) {
        owned_.set_count(r, row_bytes_ * rows_within(ranges_of(comm_.rank()), seq(), section(r)));
        held_.set_count(r, row_bytes_ * rows_within(ranges_of(r), seq(), section(comm_.rank())));
      }
      move_window(section);
    }
    agree(comm_, [&] { file_.close(); });
  }

 private:
  [[nodiscard]] Index seq() const { return payload_.shape.seq; }
  [[nodiscard]] const TokenRanges& ranges_of(int rank) const {
    return ranges_[static_cast<std::size_t>(rank)];
  }

  /// The same on every rank.
  [[nodiscard]] bool anything_within(Rows rows) const {
    return std::any_of(ranges_.begin(), ranges_.end(),
                       [&](const TokenRanges& ranges) { return rows_within(ranges, seq(), rows) > 0; });
  }

  /// `owned_` is this rank's tokens in every section, `held_` every rank's tokens in this rank's section.
  template <class Section>
  void move_window(const Section& section) {
    const Rows mine = section(comm_.rank());
    section_.resize(static_cast<std::size_t>((mine.end - mine.begin) * row_bytes_));
    if constexpr (writes) {
      for_each_owned(section, [&](std::span<std::byte> bytes, std::span<T> row) {
        encode_elements<std::remove_const_t<T>>(payload_.dtype, row, bytes);
      });
      send(owned_, held_);
      filled_.assign(static_cast<std::size_t>(mine.end - mine.begin), false);
      for_each_held(mine, [&](std::span<std::byte> bytes, Index row) {
        std::copy(bytes.begin(), bytes.end(), section_row(row).begin());
        filled_[static_cast<std::size_t>(row)] = true;
      });
      write_filled(mine);
    } else {
      file_.read(payload_.offset + mine.begin * row_bytes_, section_);
      for_each_held(mine, [&](std::span<std::byte> bytes, Index row) {
        const std::span<std::byte> from = section_row(row);
        std::copy(from.begin(), from.end(), bytes.begin());
      });
      send(held_, owned_);
      for_each_owned(section, [&](std::span<std::byte> bytes, std::span<T> row) {
        decode_elements<T>(payload_.dtype, bytes, row);
      });
    }
  }

  /// Calls visit(bytes in owned_, row of the shard).
  template <class Section, class Visit>
  void for_each_owned(const Section& section, Visit&& visit) {
    std::byte* next = owned_.bytes.data();
    const Index dim = payload_.shape.dim;
    for (int r = 0; r < comm_.size(); ++r)
      for_each_piece(
          ranges_of(comm_.rank()), seq(), section(r), [&](Index shard_row, const TokenRange& piece) {
            for (Index i = 0; i < piece.count; ++i, next += row_bytes_)
              visit(bytes_at(next),
                    std::span<T>{shard_.data() + (shard_row + i) * dim, static_cast<std::size_t>(dim)});
          });
  }

  /// Calls visit(bytes in held_, row of the section).
  template <class Visit>
  void for_each_held(Rows mine, Visit&& visit) {
    std::byte* next = held_.bytes.data();
    for (int r = 0; r < comm_.size(); ++r)
      for_each_piece(ranges_of(r), seq(), mine, [&](Index, const TokenRange& piece) {
        for (Index i = 0; i < piece.count; ++i, next += row_bytes_)
          visit(bytes_at(next), piece.position(i) - mine.begin);
      });
  }

  void send(const RankBytes& from, RankBytes& to) {
    check_mpi(MPI_Alltoallv(from.bytes.data(), from.counts.data(), from.begins.data(), MPI_BYTE,
                            to.bytes.data(), to.counts.data(), to.begins.data(), MPI_BYTE, comm_.handle()));
  }

  /// Does not write rows that no rank holds.
  void write_filled(Rows mine) {
    const auto end = filled_.end();
    for (auto at = std::find(filled_.begin(), end, true); at != end; at = std::find(at, end, true)) {
      const auto stop = std::find(at, end, false);
      const Index row = at - filled_.begin();
      file_.write(payload_.offset + (mine.begin + row) * row_bytes_,
                  std::span(section_).subspan(static_cast<std::size_t>(row * row_bytes_),
                                              static_cast<std::size_t>((stop - at) * row_bytes_)));
      at = stop;
    }
  }

  [[nodiscard]] std::span<std::byte> bytes_at(std::byte* begin) const {
    return {begin, static_cast<std::size_t>(row_bytes_)};
  }
  [[nodiscard]] std::span<std::byte> section_row(Index row) {
    return bytes_at(section_.data() + row * row_bytes_);
  }

  const Communicator& comm_;
  const NpyPayload& payload_;
  View<T> shard_;
  std::vector<TokenRanges> ranges_;  // of every rank
  Index row_bytes_;
  Index rows_;  // of the whole array
  Index rows_a_section_;
  SharedFile file_;
  RankBytes owned_, held_;
  std::vector<std::byte> section_;
  std::vector<bool> filled_;  // rows of the section that some rank has written
};

}  // namespace

template <class T>
void transfer_interleaved(const Communicator& comm, const NpyPayload& payload, View<T> shard,
                          const TokenRanges& ranges) {
  TwoPhaseTransfer<T>(comm, payload, shard, ranges).run();
}
template void transfer_interleaved(const Communicator&, const NpyPayload&, View<float>, const TokenRanges&);
template void transfer_interleaved(const Communicator&, const NpyPayload&, View<double>, const TokenRanges&);
template void transfer_interleaved(const Communicator&, const NpyPayload&, View<const float>,
                                   const TokenRanges&);
template void transfer_interleaved(const Communicator&, const NpyPayload&, View<const double>,
                                   const TokenRanges&);

}  // namespace ring_attention
