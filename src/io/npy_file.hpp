/// \file
/// `.npy` files under MPI: every rank reads and writes its own tokens, and only those.
///
/// Collective: every rank of the communicator calls every function of this file, in the same order. An
/// error of a file on any rank, for example a missing file or a full disk, is thrown on all ranks as the
/// same AgreedError. Several hosts need a file system that all of them share.
///
/// No file stays open between two calls, so that destroying a reader or a writer waits for no other
/// rank: a rank that leaves by an exception of its own reaches its MPI_Abort.
#pragma once

#include <string>
#include <vector>

#include "io/npy.hpp"
#include "io/npy_transfer.hpp"
#include "ring_attention/core/error.hpp"

namespace ring_attention {

/// A file of [S, D], [H, S, D] or [B, H, S, D] floating-point elements. The communicator outlives it.
class NpyReader {
 public:
  /// Rank 0 reads the header and broadcasts it.
  NpyReader(const Communicator& comm, std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const NpyHeader& header() const { return header_; }
  /// The shape of the whole array.
  [[nodiscard]] const Shape& shape() const { return shape_; }
  /// 2, 3 or 4: the argument of array_extents and row_extents for outputs of the same form.
  [[nodiscard]] std::size_t dimensions() const { return header_.extents.size(); }

  /// Reads this rank's tokens of every batch and head, as float or double, for any element type of the file.
  /// \throws Error, on this rank, when the shard is not shape().with_seq(count(ranges)) or a range does not lie
  ///         in the sequence.
  template <class T>
  void read(View<T> shard, const TokenRanges& ranges) const {
    transfer_shard(*comm_, {path_, header_, shape_}, shard, ranges);
  }

  /// Reads these heads only, `[batch, heads, tokens, dim]`; ranks may ask for different ones.
  template <class T>
  void read(View<T> shard, const TokenRanges& ranges, const Interval& heads) const {
    require(heads.begin >= 0 && heads.end <= shape_.heads && shard.shape().heads == heads.end - heads.begin,
            "not heads of " + to_string(shape_));
    TokenRanges rows;  // of the array seen as a matrix
    for (Index batch = 0; batch < shape_.batch; ++batch)
      for (Index head = heads.begin; head < heads.end; ++head)
        for (const TokenRange& range : ranges)
          rows.push_back(
              {(batch * shape_.heads + head) * shape_.seq + range.begin, range.stride, range.count});
    const Shape matrix{1, 1, shape_.per_row().size(), shape_.dim};
    transfer_shard(*comm_, {path_, header_, matrix}, View<T>(shard.data(), matrix.with_seq(count(rows))),
                   rows);
  }

  /// Reads all tokens of one head into an array [1, 1, S, D]; a rank may ask for another head than its peers.
  template <class T>
  void read_head(Index batch, Index head, View<T> tokens) const {
    require(batch >= 0 && batch < shape_.batch && head >= 0 && head < shape_.heads,
            "no head (" + std::to_string(batch) + ", " + std::to_string(head) + ") in " + to_string(shape_));
    require(tokens.shape() == Shape{1, 1, shape_.seq, shape_.dim},
            "one head of " + to_string(shape_) + " does not fit " + to_string(tokens.shape()));
    transfer_contiguous(*comm_, {path_, header_, shape_}, batch * shape_.heads + head, tokens,
                        whole(shape_.seq));
  }

 private:
  const Communicator* comm_;
  std::string path_;
  NpyHeader header_;
  Shape shape_;
};

/// A file that is being written, under temporary_name(path); `commit` renames it to `path`. A writer that
/// is destroyed before that does not change `path`. The communicator outlives it.
class NpyWriter {
 public:
  /// Rank 0 makes the file, header first, in its full size; a temporary file of an earlier run that was
  /// killed is overwritten.
  /// \param shape   the whole array
  /// \param extents its dimensions in the file: array_extents(shape, n), or row_extents for one number a row
  /// \param dtype   float32 or float64
  NpyWriter(const Communicator& comm, std::string path, const Shape& shape, std::vector<Index> extents,
            Dtype dtype);
  NpyWriter(const NpyWriter&) = delete;
  ~NpyWriter();

  [[nodiscard]] const std::string& path() const { return path_; }

  /// Writes this rank's tokens of every batch and head. Once.
  /// \throws Error, on this rank, when the shard is not the array's with_seq(count(ranges)) or a range does not
  ///         lie in the sequence.
  template <class T>
  void write(View<const T> shard, const TokenRanges& ranges) {
    require(!written_, "NpyWriter: " + path_ + " was written already");
    transfer_shard(comm_, {temporary_name(path_), header_, shape_}, shard, ranges);
    written_ = true;
  }

 private:
  friend void commit(const Communicator& comm, const std::vector<NpyWriter*>& writers);

  const Communicator& comm_;
  std::string path_;
  Shape shape_;
  NpyHeader header_;
  bool written_ = false;
  bool committed_ = false;
};

/// Renames the files to their own names: after every rank has written all of them, rank 0 renames one after
/// the other. \throws Error, on this rank, when a file was not written.
void commit(const Communicator& comm, const std::vector<NpyWriter*>& writers);

}  // namespace ring_attention
