#include "ring_attention/mpi/npy_transfer.hpp"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "ring_attention/core/error.hpp"
#include "ring_attention/mpi/shared_file.hpp"

namespace ring_attention {
namespace {

/// Bytes between file and shard at a time: what a transfer costs in memory beside the shard, and why an
/// array of any size is moved by counts that fit MPI's int.
constexpr Index staging_bytes = Index{8} << 20U;

/// A run of the shard, whose tokens follow `before` other tokens of it.
struct PlacedRun {
  Run run;
  Index before = 0;
};

/// The runs that are strided, or those that are not.
std::vector<PlacedRun> select(const Runs& runs, bool strided) {
  std::vector<PlacedRun> selected;
  Index before = 0;
  for (const Run& run : runs) {
    if (run.count > 0 && (run.count > 1 && run.stride > 1) == strided) selected.push_back({run, before});
    before += run.count;
  }
  return selected;
}

/// The elements of one run of one head: together in memory.
template <class T>
std::span<T> stretch(const View<T>& shard, Index batch, Index head, const PlacedRun& placed) {
  const Index dim = shard.shape().dim;
  return {shard.head(batch, head) + placed.before * dim, static_cast<std::size_t>(placed.run.count * dim)};
}

/// Moves elements between memory and file through a staging buffer, converting on the way.
template <class T>
class Mover {
  static constexpr bool writes = std::is_const_v<T>;
  using Element = std::remove_const_t<T>;

 public:
  Mover(SharedFile& file, Dtype dtype, Index bytes)
      : file_(file),
        dtype_(dtype),
        element_(element_bytes(dtype)),
        capacity_(std::max<Index>(1, bytes / element_)) {}

  /// Elements of one piece at most.
  [[nodiscard]] Index capacity() const { return capacity_; }

  /// Moves `elements`, which lie together in the file (or in its view) at `offset` bytes.
  void move(Index offset, std::span<T> elements) {
    move_pieces(offset, elements, pieces(elements.size()), false);
  }

  /// The same by collective calls, `rounds` of them on every rank, so that MPI gathers the interleaved tokens
  /// of all ranks into large transfers. A failure is kept in the file and not thrown: the peers count on the
  /// rounds that are left.
  void move_together(Index offset, std::span<T> elements, Index rounds) {
    move_pieces(offset, elements, rounds, true);
  }

  [[nodiscard]] Index pieces(std::size_t elements) const {
    return (static_cast<Index>(elements) + capacity_ - 1) / capacity_;
  }

 private:
  void move_pieces(Index offset, std::span<T> elements, Index rounds, bool together) {
    for (Index round = 0; round < rounds && (together || file_.sound()); ++round) {
      const auto n = static_cast<std::size_t>(std::min(capacity_, static_cast<Index>(elements.size())));
      const Index bytes = static_cast<Index>(n) * element_;
      if (static_cast<std::size_t>(bytes) > staging_.size()) staging_.resize(static_cast<std::size_t>(bytes));
      const std::span<std::byte> staged = std::span(staging_).first(static_cast<std::size_t>(bytes));
      if constexpr (writes) {
        encode_elements<Element>(dtype_, elements.first(n), staged);
        file_.write(offset, staged, together);
      } else {
        file_.read(offset, staged, together);
        decode_elements<Element>(dtype_, staged, elements.first(n));
      }
      offset += bytes;
      elements = elements.subspan(n);
    }
  }

  SharedFile& file_;
  Dtype dtype_;
  Index element_;
  Index capacity_;
  std::vector<std::byte> staging_;
};

constexpr FileAccess access(bool writes) { return writes ? FileAccess::write : FileAccess::read; }

/// Runs of stride 1: every rank by itself, from one place of the file per run and head.
/// Batch and head are counted in the whole array, those of the shard start at `first_head`.
template <class T>
void transfer_contiguous(const Communicator& comm, const NpyPayload& payload, Index first_head, View<T> shard,
                         const std::vector<PlacedRun>& runs) {
  const Index token_bytes = payload.shape.dim * element_bytes(payload.dtype);
  const Shape& shape = shard.shape();
  agree(comm, [&] {
    if (runs.empty() || shape.size() == 0) return;
    SharedFile file(MPI_COMM_SELF, comm.rank(), payload.path, access(std::is_const_v<T>));
    file.check_size(payload.file_bytes);
    Mover<T> mover(file, payload.dtype, staging_bytes);
    for (Index b = 0; b < shape.batch; ++b)
      for (Index h = 0; h < shape.heads; ++h)
        for (const PlacedRun& placed : runs) {
          const Index row = (first_head + b * shape.heads + h) * payload.shape.seq + placed.run.begin;
          mover.move(payload.offset + row * token_bytes, stretch(shard, b, h, placed));
        }
    file.close();
  });
}

Index largest_of_ranks(const Communicator& comm, Index value) { return -min_over_ranks(comm, -value); }

/// The rows of a strided run in every head, as the visible part of the file.
Datatype strided_rows(const Shape& whole, const Run& run, Index token_bytes) {
  constexpr Index most = std::numeric_limits<int>::max();
  require(token_bytes <= most && run.count <= most,
          "a strided run of more than 2^31 tokens, or bytes a token");
  MPI_Datatype rows = MPI_DATATYPE_NULL;
  check_mpi(MPI_Type_create_hvector(static_cast<int>(run.count), static_cast<int>(token_bytes),
                                    run.stride * token_bytes, MPI_BYTE, &rows));
  const Datatype owner(rows);
  MPI_Datatype head = MPI_DATATYPE_NULL;
  check_mpi(MPI_Type_create_resized(rows, 0, whole.seq * token_bytes, &head));
  return Datatype(head);
}

/// Strided runs: tokens of all ranks interleave, so all ranks move theirs together.
template <class T>
void transfer_strided(const Communicator& comm, const NpyPayload& payload, View<T> shard,
                      const std::vector<PlacedRun>& runs) {
  const Index slots = largest_of_ranks(comm, static_cast<Index>(runs.size()));
  if (slots == 0) return;
  const Index token_bytes = payload.shape.dim * element_bytes(payload.dtype);
  SharedFile file(comm.handle(), comm.rank(), payload.path, access(std::is_const_v<T>));
  agree(comm, [&] { file.check_size(payload.file_bytes); });
  Mover<T> mover(file, payload.dtype, staging_bytes / comm.size());
  for (Index slot = 0; slot < slots; ++slot) {
    const bool mine = slot < static_cast<Index>(runs.size());
    const PlacedRun placed = mine ? runs[static_cast<std::size_t>(slot)] : PlacedRun{};
    const Index bytes_a_head = placed.run.count * token_bytes;
    const Index rounds =
        largest_of_ranks(comm, mover.pieces(static_cast<std::size_t>(placed.run.count * payload.shape.dim)));
    if (mine) {
      file.show(payload.offset + placed.run.begin * token_bytes,
                strided_rows(payload.shape, placed.run, token_bytes));
    } else {
      file.show_all();
    }
    for (Index b = 0; b < payload.shape.batch; ++b)
      for (Index h = 0; h < payload.shape.heads; ++h)
        mover.move_together((b * payload.shape.heads + h) * bytes_a_head,
                            mine ? stretch(shard, b, h, placed) : std::span<T>{}, rounds);
  }
  agree(comm, [&] { file.close(); });
}

void check_runs(const Runs& runs, Index seq) {
  for (const Run& run : runs)
    require(run.count >= 0 && run.stride >= 1 && (run.count == 0 || (run.begin >= 0 && run.last() < seq)),
            "a run leaves the sequence of " + std::to_string(seq) + " tokens");
}

}  // namespace

template <class T>
void transfer_shard(const Communicator& comm, const NpyPayload& payload, View<T> shard, const Runs& runs) {
  check_runs(runs, payload.shape.seq);
  require(shard.shape() == payload.shape.with_seq(count(runs)),
          "the shard " + to_string(shard.shape()) + " does not hold " + std::to_string(count(runs)) +
              " tokens of " + to_string(payload.shape));
  transfer_contiguous(comm, payload, 0, shard, select(runs, false));
  transfer_strided(comm, payload, shard, select(runs, true));
}
template void transfer_shard(const Communicator&, const NpyPayload&, View<float>, const Runs&);
template void transfer_shard(const Communicator&, const NpyPayload&, View<double>, const Runs&);
template void transfer_shard(const Communicator&, const NpyPayload&, View<const float>, const Runs&);
template void transfer_shard(const Communicator&, const NpyPayload&, View<const double>, const Runs&);

template <class T>
void read_one_head(const Communicator& comm, const NpyPayload& payload, Index batch, Index head,
                   View<T> tokens) {
  const Shape& whole_array = payload.shape;
  require(
      batch >= 0 && batch < whole_array.batch && head >= 0 && head < whole_array.heads,
      "no head (" + std::to_string(batch) + ", " + std::to_string(head) + ") in " + to_string(whole_array));
  require(tokens.shape() == Shape{1, 1, whole_array.seq, whole_array.dim},
          "one head of " + to_string(whole_array) + " does not fit " + to_string(tokens.shape()));
  transfer_contiguous(comm, payload, batch * whole_array.heads + head, tokens,
                      select(whole(whole_array.seq), false));
}
template void read_one_head(const Communicator&, const NpyPayload&, Index, Index, View<float>);
template void read_one_head(const Communicator&, const NpyPayload&, Index, Index, View<double>);

}  // namespace ring_attention
