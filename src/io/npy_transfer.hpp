/// \file
/// Elements of a shard to or from their places in a file: a part of npy_file.cpp.
///
/// T is float or double. A View<const T> is written to the file, a View<T> is read from it.
#pragma once

#include <string>

#include "io/npy.hpp"
#include "ring_attention/core/token_range.hpp"
#include "ring_attention/core/view.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// An array in a file; a file of another size than the header's is refused.
struct NpyArray {
  const std::string& path;
  const NpyHeader& header;
  const Shape& shape;  ///< of the whole array

  [[nodiscard]] Index row_bytes() const { return shape.dim * element_bytes(header.dtype); }
};

/// Ranges of stride 1: every rank by itself, one place of the file per range and head. The shard's heads are
/// those of the whole array from `first_head` on. Collective; the ranks' ranges and heads may differ.
/// \throws AgreedError
template <class T>
void transfer_contiguous(const Communicator& comm, const NpyArray& array, Index first_head, View<T> shard,
                         const TokenRanges& ranges);

/// Moves the tokens `ranges` of every batch and head. Collective; the ranks' ranges differ.
/// \throws AgreedError
template <class T>
void transfer_shard(const Communicator& comm, const NpyArray& array, View<T> shard,
                    const TokenRanges& ranges);

}  // namespace ring_attention
