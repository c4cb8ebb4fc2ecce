/// \file
/// MPI's life cycle, its errors, and how ranks end together.
///
/// Two kinds of errors, kept apart:
/// - Anything every rank can check goes through `agree`: all ranks learn of the first failure, all throw
///   the same AgreedError, rank 0 prints one line, all finalise, exit code 2.
/// - A failure on one rank only (any other exception) ends the job: that rank prints `[rank r] what` and
///   calls MPI_Abort. It must never finalise, because its peers would then wait forever.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <source_location>
#include <span>
#include <type_traits>
#include <vector>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"

namespace ring_attention {

/// Throws Error with MPI's own text unless `code` is MPI_SUCCESS.
/// This works because every Communicator returns errors instead of aborting inside the call.
void check_mpi(int code, std::source_location where = std::source_location::current());

/// A duplicate of a communicator, or a part of it, with MPI_ERRORS_RETURN. Owns it; cannot be copied.
class Communicator {
 public:
  explicit Communicator(MPI_Comm from);
  /// The ranks of `from` that pass the same colour (>= 0), in their order. Collective over `from`.
  Communicator(const Communicator& from, int colour);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  ~Communicator();

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] MPI_Comm handle() const { return comm_; }

 private:
  void initialise();

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
};

/// Bad input that all ranks report together, with the same text.
class AgreedError : public InputError {
 public:
  using InputError::InputError;
};

/// The text of the error of `validate` of which all ranks are to know, or none.
[[nodiscard]] std::optional<std::string> failure_of(int rank, const std::function<void()>& validate);

/// Runs `validate` on every rank. If any rank threw InputError or std::filesystem::filesystem_error (or had no memory), all
/// ranks throw AgreedError with the message of the lowest such rank. Collective.
void agree(const Communicator& comm, const std::function<void()>& validate);

/// Throws AgreedError on all ranks unless all passed the same value. The message names the field, the value
/// of rank 0 and the lowest rank that differs. Collective.
void require_same(const Communicator& comm, const std::string& field, const std::string& value);
inline void require_same(const Communicator& comm, const std::string& field, Index value) {
  require_same(comm, field, std::to_string(value));
}

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

/// Throws AgreedError unless the world has `promised` ranks (0: no promise). A launcher that belongs to
/// another MPI starts four worlds of one rank instead of one world of four, and all four would "pass".
void require_world_size(const Communicator& comm, Index promised);

/// The main program under MPI: initialises, runs `body`, finalises, and returns the exit code for all
/// ranks. `body` returns the rank's own code; the largest one is returned everywhere.
int mpi_main(int& argc, char**& argv, const std::function<int(const Communicator&)>& body);

}  // namespace ring_attention
