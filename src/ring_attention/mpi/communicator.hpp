/// \file
/// `Communicator`: an MPI communicator that returns errors, which check_mpi() throws.
#pragma once

#include <mpi.h>

#include <source_location>

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

}  // namespace ring_attention
