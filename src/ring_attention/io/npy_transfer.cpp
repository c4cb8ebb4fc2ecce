#include "ring_attention/io/npy_transfer.hpp"

#include <algorithm>
#include <vector>

#include "ring_attention/core/error.hpp"

namespace ring_attention {
namespace {

/// Bytes between file and shard at a time: the memory that a transfer needs beside the shard. So the counts of
/// an array of any size fit MPI's int.
constexpr Index staging_bytes = Index{8} << 20U;

/// Moves elements that are contiguous in memory and, at `offset` bytes, in the file, and converts them.
template <class T>
void move(SharedFile& file, Dtype dtype, Index offset, std::span<T> elements,
          std::vector<std::byte>& staging) {
  const auto element = static_cast<std::size_t>(element_bytes(dtype));
  while (!elements.empty() && file.sound()) {
    const std::size_t n = std::min(elements.size(), static_cast<std::size_t>(staging_bytes) / element);
    const std::span<T> piece = elements.first(n);
    if (staging.size() < n * element) staging.resize(n * element);
    const std::span<std::byte> bytes = std::span(staging).first(n * element);
    if constexpr (std::is_const_v<T>) {
      encode_elements<std::remove_const_t<T>>(dtype, piece, bytes);
      file.write(offset, bytes);
    } else {
      file.read(offset, bytes);
      decode_elements<T>(dtype, bytes, piece);
    }
    offset += static_cast<Index>(bytes.size());
    elements = elements.subspan(n);
  }
}

/// Ranges of stride 1: every rank by itself, one place of the file per range and head. The shard's heads are
/// those of the whole array from `first_head` on.
template <class T>
void transfer_contiguous(const Communicator& comm, const NpyPayload& payload, Index first_head, View<T> shard,
                         const TokenRanges& ranges) {
  const Shape& shape = shard.shape();
  agree(comm, [&] {
    if (shape.size() == 0) return;
    SharedFile file(comm.rank(), payload.path, access_of<T>);
    file.check_size(payload.file_bytes);
    std::vector<std::byte> staging;
    for (Index b = 0; b < shape.batch; ++b)
      for (Index h = 0; h < shape.heads; ++h) {
        T* next = shard.head(b, h);
        for (const TokenRange& range : ranges) {
          const Index row = (first_head + b * shape.heads + h) * payload.shape.seq + range.begin;
          const Index elements = range.count * shape.dim;
          move(file, payload.dtype, payload.offset + row * payload.row_bytes(),
               std::span<T>{next, static_cast<std::size_t>(elements)}, staging);
          next += elements;
        }
      }
    file.close();
  });
}

void check_ranges(const TokenRanges& ranges, Index seq) {
  for (const TokenRange& range : ranges)
    require(range.count >= 0 && range.stride >= 1 &&
                (range.count == 0 || (range.begin >= 0 && range.end() <= seq)),
            "a token range leaves the sequence of " + std::to_string(seq) + " tokens");
}

bool is_contiguous(const TokenRanges& ranges) {
  return std::all_of(ranges.begin(), ranges.end(),
                     [](const TokenRange& range) { return range.stride == 1 || range.count <= 1; });
}

}  // namespace

template <class T>
void transfer_shard(const Communicator& comm, const NpyPayload& payload, View<T> shard,
                    const TokenRanges& ranges) {
  check_ranges(ranges, payload.shape.seq);
  require(shard.shape() == payload.shape.with_seq(count(ranges)),
          "the shard " + to_string(shard.shape()) + " does not hold " + std::to_string(count(ranges)) +
              " tokens of " + to_string(payload.shape));
  if (all_of_ranks(comm, is_contiguous(ranges))) {
    transfer_contiguous(comm, payload, 0, shard, ranges);
  } else {
    transfer_interleaved(comm, payload, shard, ranges);
  }
}
template void transfer_shard(const Communicator&, const NpyPayload&, View<float>, const TokenRanges&);
template void transfer_shard(const Communicator&, const NpyPayload&, View<double>, const TokenRanges&);
template void transfer_shard(const Communicator&, const NpyPayload&, View<const float>, const TokenRanges&);
template void transfer_shard(const Communicator&, const NpyPayload&, View<const double>, const TokenRanges&);

template <class T>
void read_one_head(const Communicator& comm, const NpyPayload& payload, Index batch, Index head,
                   View<T> tokens) {
  const Shape& all = payload.shape;
  require(batch >= 0 && batch < all.batch && head >= 0 && head < all.heads,
          "no head (" + std::to_string(batch) + ", " + std::to_string(head) + ") in " + to_string(all));
  require(tokens.shape() == Shape{1, 1, all.seq, all.dim},
          "one head of " + to_string(all) + " does not fit " + to_string(tokens.shape()));
  transfer_contiguous(comm, payload, batch * all.heads + head, tokens, whole(all.seq));
}
template void read_one_head(const Communicator&, const NpyPayload&, Index, Index, View<float>);
template void read_one_head(const Communicator&, const NpyPayload&, Index, Index, View<double>);

}  // namespace ring_attention
