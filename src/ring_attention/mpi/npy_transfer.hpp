/// \file
/// Elements of a shard to or from their places in a file: a part of npy_file.cpp.
#pragma once

#include <string>

#include "ring_attention/core/npy.hpp"
#include "ring_attention/core/run.hpp"
#include "ring_attention/core/view.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Where an array's elements are.
struct NpyPayload {
  std::string path;
  Dtype dtype = Dtype::float64;
  Index offset = 0;      ///< bytes before the first element
  Index file_bytes = 0;  ///< of the whole file: another size is another file
  Shape shape;           ///< of the whole array
};

/// Reads the tokens `runs` of every batch and head into a View<T>, or writes them from a View<const T>.
/// Collective, the ranks' runs differ. \throws AgreedError
template <class T>
void transfer_shard(const Communicator& comm, const NpyPayload& payload, View<T> shard, const Runs& runs);

/// Reads all tokens of one head. Collective, the ranks' heads may differ. \throws AgreedError
template <class T>
void read_one_head(const Communicator& comm, const NpyPayload& payload, Index batch, Index head,
                   View<T> tokens);

}  // namespace ring_attention
