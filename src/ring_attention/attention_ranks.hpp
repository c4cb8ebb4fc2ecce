/// \file
/// `AttentionRanks`: what a call asks of the ranks that share it; `mpi()`: those of a communicator.
#pragma once

#include <functional>
#include <memory>

#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/parallel/rank_grid.hpp"

namespace ring_attention {

/// The ranks that share calls. They keep what is expensive to make: a duplicate of the communicator, and its parts. mpi() makes
/// them; peers() (peer_ranks.hpp) and observed() (observed_call.hpp) make others.
class AttentionRanks {
 public:
  AttentionRanks() = default;
  AttentionRanks(const AttentionRanks&) = delete;
  AttentionRanks& operator=(const AttentionRanks&) = delete;
  virtual ~AttentionRanks() = default;

  /// An all-to-all among all ranks.
  [[nodiscard]] virtual AllToAll& all() = 0;
  /// Each bit becomes 1 where it is 1 on any rank (mpi/agreement.hpp). Collective.
  virtual void unite(std::span<std::byte> bytes) = 0;
  /// Links between arrays of the host. Collective.
  [[nodiscard]] virtual std::unique_ptr<Links> make_links(const RankGrid& grid) = 0;
  /// Links that it keeps until a call has another grid. Collective.
  [[nodiscard]] virtual Links& links(const RankGrid& grid) {
    if (!links_ || ulysses_ != grid.ulysses.size) {
      links_ = make_links(grid);
      ulysses_ = grid.ulysses.size;
    }
    return *links_;
  }
  /// May this process have threads that do not send?
  [[nodiscard]] virtual bool may_have_threads() const { return true; }

  [[nodiscard]] int rank() { return all().rank(); }
  [[nodiscard]] int size() { return all().size(); }

 private:
  std::unique_ptr<Links> links_;
  int ulysses_ = 0;
};

/// The ranks of a communicator. Collective, and so is the end of the result, unless MPI has ended before.
/// \param comm  is duplicated: it still belongs to the caller, who may free it
/// \throws InputError when MPI is not running, and for MPI_COMM_NULL or an intercommunicator; nothing is sent then
[[nodiscard]] std::shared_ptr<AttentionRanks> mpi(MPI_Comm comm);

/// How these ranks meet.
[[nodiscard]] inline Unite unite_of(AttentionRanks& ranks) {
  return [&ranks](std::span<std::byte> bytes) { ranks.unite(bytes); };
}
inline void agree(AttentionRanks& ranks, const std::function<void()>& validate) {
  agree(ranks.rank(), ranks.size(), unite_of(ranks), validate);
}

}  // namespace ring_attention
