/// \file
/// Elements of a shard to or from their places in a file: a part of npy_file.cpp.
#pragma once

#include <string>
#include <type_traits>

#include "ring_attention/core/token_range.hpp"
#include "ring_attention/core/view.hpp"
#include "ring_attention/io/npy.hpp"
#include "ring_attention/io/shared_file.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Where an array's elements are.
struct NpyPayload {
  std::string path;
  Dtype dtype = Dtype::float64;
  Index offset = 0;      ///< bytes before the first element
  Index file_bytes = 0;  ///< of the whole file; a file of another size is refused
  Shape shape;           ///< of the whole array

  [[nodiscard]] Index row_bytes() const { return shape.dim * element_bytes(dtype); }
};

/// A View<const T> is written to the file, a View<T> is read from it.
template <class T>
inline constexpr FileAccess access_of = std::is_const_v<T> ? FileAccess::write : FileAccess::read;

/// Moves the tokens `ranges` of every batch and head. Collective; the ranks' ranges differ.
/// \throws AgreedError
template <class T>
void transfer_shard(const Communicator& comm, const NpyPayload& payload, View<T> shard,
                    const TokenRanges& ranges);

/// Reads all tokens of one head. Collective; the ranks' heads may differ. \throws AgreedError
template <class T>
void read_one_head(const Communicator& comm, const NpyPayload& payload, Index batch, Index head,
                   View<T> tokens);

/// transfer_shard for ranges of any stride, in npy_interleaved.cpp.
template <class T>
void transfer_interleaved(const Communicator& comm, const NpyPayload& payload, View<T> shard,
                          const TokenRanges& ranges);

}  // namespace ring_attention
