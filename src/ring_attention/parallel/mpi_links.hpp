/// \file
/// `MpiLinks`: the links of a rank over MPI, between arrays of the host.
#pragma once

#include <memory>

#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"
#include "ring_attention/parallel/links.hpp"

namespace ring_attention {

/// How K,V move. Both ways give the same bits.
enum class TransportKind {
  overlapped,  ///< while the ranks compute
  odd_even     ///< between two steps, with blocking calls
};

class MpiLinks : public Links {
 public:
  /// Collective over `world`, which outlives this object.
  MpiLinks(const Communicator& world, const Axis& ulysses, const Axis& ring,
           TransportKind kind = TransportKind::overlapped);

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) override;
  [[nodiscard]] AllToAll& ring() override { return ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return *ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override;

 private:
  const Communicator& world_;
  TransportKind kind_;
  MpiAllToAll ring_;
  std::unique_ptr<AllToAll> ulysses_;
};

}  // namespace ring_attention
