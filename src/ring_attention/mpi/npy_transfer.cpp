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

/// Elements that lie together in the shard: in the order of the file, one stretch after the other.
template <class T>
using Stretches = std::vector<std::span<T>>;

/// One run of one head.
template <class T>
std::span<T> stretch(const View<T>& shard, Index batch, Index head, const PlacedRun& placed) {
  const Index dim = shard.shape().dim;
  return {shard.head(batch, head) + placed.before * dim, static_cast<std::size_t>(placed.run.count * dim)};
}

/// Takes the first `most` elements, or all if they are fewer, off `rest`.
template <class T>
Stretches<T> take(Stretches<T>& rest, Index most) {
  Stretches<T> taken;
  auto room = static_cast<std::size_t>(most);
  auto next = rest.begin();
  for (; next != rest.end() && room > 0; ++next) {
    const std::size_t n = std::min(room, next->size());
    taken.push_back(next->first(n));
    *next = next->subspan(n);
    room -= n;
    if (!next->empty()) break;
  }
  rest.erase(rest.begin(), next);
  return taken;
}

/// Moves elements between memory and file through a staging buffer, converting on the way.
template <class T>
class Mover {
  static constexpr bool writes = std::is_const_v<T>;
  using Element = std::remove_const_t<T>;

 public:
  /// \param bytes of the staging buffer; room for one element at least
  Mover(SharedFile& file, Dtype dtype, Index bytes)
      : file_(file),
        dtype_(dtype),
        element_(element_bytes(dtype)),
        capacity_(std::max<Index>(1, bytes / element_)) {}

  /// Transfers that so many elements take.
  [[nodiscard]] Index rounds(Index elements) const { return (elements + capacity_ - 1) / capacity_; }

  /// Moves elements that lie together in the file at `offset` bytes. Ends early when the file has failed.
  void move(Index offset, std::span<T> elements) {
    Stretches<T> rest{elements};
    for (Index round = rounds(static_cast<Index>(elements.size())); round > 0 && file_.sound(); --round)
      offset += move_some(offset, rest, false);
  }

  /// The same for what the file shows, by `rounds` collective calls on every rank, so that MPI gathers the
  /// interleaved tokens of all ranks into large transfers. A failure ends nothing: the peers count on the
  /// calls that are left.
  void move_together(Stretches<T> rest, Index rounds) {
    for (Index offset = 0; rounds > 0; --rounds) offset += move_some(offset, rest, true);
  }

 private:
  /// One transfer; returns its bytes.
  Index move_some(Index offset, Stretches<T>& rest, bool together) {
    const Stretches<T> taken = take(rest, capacity_);
    std::size_t bytes = 0;
    for (const std::span<T>& stretch : taken) bytes += bytes_of(stretch);
    if (bytes > staging_.size()) staging_.resize(bytes);
    const std::span<std::byte> staged = std::span(staging_).first(bytes);
    if constexpr (writes) {
      for (std::size_t at = 0; const std::span<T>& stretch : taken) {
        encode_elements<Element>(dtype_, stretch, staged.subspan(at, bytes_of(stretch)));
        at += bytes_of(stretch);
      }
      file_.write(offset, staged, together);
    } else {
      file_.read(offset, staged, together);
      for (std::size_t at = 0; const std::span<T>& stretch : taken) {
        decode_elements<Element>(dtype_, staged.subspan(at, bytes_of(stretch)), stretch);
        at += bytes_of(stretch);
      }
    }
    return static_cast<Index>(bytes);
  }

  [[nodiscard]] std::size_t bytes_of(std::span<T> stretch) const {
    return stretch.size() * static_cast<std::size_t>(element_);
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
    Stretches<T> mine;
    Index elements = 0;
    if (slot < static_cast<Index>(runs.size())) {
      const PlacedRun& placed = runs[static_cast<std::size_t>(slot)];
      file.show(payload.offset + placed.run.begin * token_bytes,
                strided_rows(payload.shape, placed.run, token_bytes));
      for (Index b = 0; b < payload.shape.batch; ++b)
        for (Index h = 0; h < payload.shape.heads; ++h) mine.push_back(stretch(shard, b, h, placed));
      elements = payload.shape.with_seq(placed.run.count).size();
    } else {
      file.show_all();
    }
    mover.move_together(std::move(mine), largest_of_ranks(comm, mover.rounds(elements)));
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
