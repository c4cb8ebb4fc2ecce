/// \file
/// Values that travel between all ranks of a communicator: broadcasts, reductions, a gather, a barrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "ring_attention/core/shape.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Sends a value, a text or a vector from `root` to all ranks. Collective.
template <class T>
void broadcast(const Communicator& comm, T& value, int root = 0) {
  if constexpr (std::is_trivially_copyable_v<T>) {
    check_mpi(MPI_Bcast(&value, sizeof value, MPI_BYTE, root, comm.handle()));
  } else {
    std::size_t size = value.size();
    broadcast(comm, size, root);
    value.resize(size);
    const std::span bytes = std::as_writable_bytes(std::span(value));
    check_mpi(MPI_Bcast_c(bytes.data(), std::ssize(bytes), MPI_BYTE, root, comm.handle()));
  }
}

/// Reductions over all ranks. Collective. If any value is NaN, the maximum is NaN: a wrong result must not look small.
[[nodiscard]] double max_over_ranks(const Communicator& comm, double value);
[[nodiscard]] Index min_over_ranks(const Communicator& comm, Index value);
[[nodiscard]] Index sum_over_ranks(const Communicator& comm, Index value);
/// Element by element, in place.
void sum_over_ranks(const Communicator& comm, std::span<double> values);
void max_over_ranks(const Communicator& comm, std::span<std::uint64_t> values);
/// Each bit becomes 1 where it is 1 on any rank, in place.
void unite(const Communicator& comm, std::span<std::byte> bytes);
[[nodiscard]] bool all_of_ranks(const Communicator& comm, bool value);

/// Returns after every rank has called it. Collective.
void barrier(const Communicator& comm);

/// Every rank's value, in the order of the ranks, on all ranks. Collective.
template <class T>
[[nodiscard]] std::vector<T> all_gather(const Communicator& comm, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>, "values travel as bytes");
  std::vector<T> all(static_cast<std::size_t>(comm.size()));
  check_mpi(MPI_Allgather(&value, sizeof value, MPI_BYTE, all.data(), sizeof value, MPI_BYTE, comm.handle()));
  return all;
}

}  // namespace ring_attention
