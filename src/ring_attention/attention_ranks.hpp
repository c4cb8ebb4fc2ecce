/// \file
/// `AttentionRanks`: what an Attention asks of the ranks that share it, over MPI or over Peers.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/parallel/rank_grid.hpp"
#include "ring_attention/ring/transports/peers.hpp"

namespace ring_attention {

/// The ranks of an Attention: those of a communicator, or Peers.
class AttentionRanks {
 public:
  AttentionRanks() = default;
  AttentionRanks(const AttentionRanks&) = delete;
  AttentionRanks& operator=(const AttentionRanks&) = delete;
  virtual ~AttentionRanks() = default;

  /// An all-to-all among all ranks.
  [[nodiscard]] virtual AllToAll& all() = 0;
  /// Does what Peers::unite says.
  virtual void unite(std::span<std::byte> bytes) = 0;
  /// The links between arrays of the host. Collective.
  [[nodiscard]] virtual std::unique_ptr<Links> links(const RankGrid& grid) = 0;
  /// The communicator of the ranks; null when they are Peers.
  [[nodiscard]] virtual const Communicator* communicator() const { return nullptr; }

  [[nodiscard]] int rank() { return all().rank(); }
  [[nodiscard]] int size() { return all().size(); }
};

/// \param caller  is duplicated \throws InputError: see Attention
[[nodiscard]] std::unique_ptr<AttentionRanks> ranks_of(MPI_Comm caller);
/// \param peers  outlive the result
[[nodiscard]] std::unique_ptr<AttentionRanks> ranks_of(Peers& peers);

/// Does what agree() of a communicator does.
void agree(AttentionRanks& ranks, const std::function<void()>& validate);
/// The text that `root` passes. Collective.
[[nodiscard]] std::string text_of(int root, AttentionRanks& ranks, std::string text);

}  // namespace ring_attention
