/// \file
/// `MpiAllToAll`: an all-to-all over the ranks of a communicator.
#pragma once

#include <optional>

#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"

namespace ring_attention {

/// One rank's end. An exchange is one collective call of MPI, and a rank that waits in it yields its core. Pieces of more
/// than 2^31 bytes need MPI-4's large counts.
class MpiAllToAll : public AllToAll {
 public:
  /// All ranks of `comm`, which outlives this object.
  explicit MpiAllToAll(const Communicator& comm) : comm_(&comm) {}
  /// The ranks of `world` along an axis, with a communicator of their own unless they are all of `world`. Collective over
  /// `world`.
  MpiAllToAll(const Communicator& world, const Axis& axis);

  [[nodiscard]] int rank() const override { return comm_->rank(); }
  [[nodiscard]] int size() const override { return comm_->size(); }
  [[nodiscard]] const Communicator& communicator() const { return *comm_; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }

  void all_to_all(const Pieces& pieces) override;

 private:
  std::optional<Communicator> own_;
  const Communicator* comm_;
  TransportStatistics statistics_;
};

}  // namespace ring_attention
