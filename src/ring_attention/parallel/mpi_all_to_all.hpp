/// \file
/// `MpiAllToAll`: an all-to-all over the ranks of a communicator.
#pragma once

#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/parallel/all_to_all.hpp"

namespace ring_attention {

/// One rank's end, in one collective call of MPI. A rank that waits yields its core. Pieces of more than 2^31 bytes need
/// MPI-4's large counts.
class MpiAllToAll {
 public:
  /// \param line  a sub-communicator; outlives this object
  explicit MpiAllToAll(const Communicator& line) : line_(line) {}

  [[nodiscard]] int rank() const { return line_.rank(); }
  [[nodiscard]] int size() const { return line_.size(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return statistics_; }

  void exchange(const Pieces& pieces);

 private:
  const Communicator& line_;
  TransportStatistics statistics_;
};

static_assert(AllToAll<MpiAllToAll>);

}  // namespace ring_attention
