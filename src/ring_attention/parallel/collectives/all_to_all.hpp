/// \file
/// `AllToAll`: every rank of a group sends one piece to each rank, itself included, and receives one from each.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "ring_attention/parallel/links.hpp"

namespace ring_attention {

/// Piece i of `send` goes to rank i of the group, piece i of `receive` comes from it. A piece may be empty. Pieces to
/// send may overlap: an all-gather sends one piece to all. The memory belongs to the caller.
struct Pieces {
  std::vector<std::span<const std::byte>> send;
  std::vector<std::span<std::byte>> receive;
};

/// One rank's end of a group of ranks. all_to_all() returns when all pieces are here and those sent may be overwritten. All
/// ranks of the group call it in the same order. statistics() count what goes to other ranks and comes from them; the
/// whole exchange is exposed.
class AllToAll {
 public:
  AllToAll() = default;
  AllToAll(const AllToAll&) = delete;
  AllToAll& operator=(const AllToAll&) = delete;
  virtual ~AllToAll() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual const TransportStatistics& statistics() const = 0;
  virtual void all_to_all(const Pieces& pieces) = 0;
};

/// A group that several parts of a rank use.
using Group = std::shared_ptr<AllToAll>;

/// Passes every call to another group, which outlives it. Derived classes change all_to_all().
class AllToAllAdapter : public AllToAll {
 public:
  explicit AllToAllAdapter(AllToAll& group) : group_(group) {}

  [[nodiscard]] int rank() const override { return group_.rank(); }
  [[nodiscard]] int size() const override { return group_.size(); }
  [[nodiscard]] const TransportStatistics& statistics() const override { return group_.statistics(); }
  void all_to_all(const Pieces& pieces) override { group_.all_to_all(pieces); }

 private:
  AllToAll& group_;
};

/// A group of one rank of the host: its piece is copied.
class OneRank : public AllToAll {
 public:
  [[nodiscard]] int rank() const override { return 0; }
  [[nodiscard]] int size() const override { return 1; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }
  void all_to_all(const Pieces& pieces) override;

 private:
  TransportStatistics statistics_;
};

/// Bytes of the pieces of all ranks but `rank`.
template <class Spans>
[[nodiscard]] Index bytes_of_others(const Spans& pieces, int rank) {
  Index bytes = 0;
  for (int other = 0; other < static_cast<int>(pieces.size()); ++other)
    if (other != rank) bytes += static_cast<Index>(pieces[static_cast<std::size_t>(other)].size());
  return bytes;
}

/// What a rank has sent by the all-to-alls of ranks that share heads, and by all-gathers.
[[nodiscard]] inline TransportStatistics exchanged(Links& links) {
  TransportStatistics all = links.ulysses().statistics();
  return all += links.ring().statistics();
}

/// Adds one exchange of `rank`: a message for every piece to another rank, `seconds` of waiting.
void count_exchange(TransportStatistics& statistics, const Pieces& pieces, int rank, double seconds);

/// \throws Error unless there is one piece for each of `size` ranks, and the rank's own piece is as long on both sides
void require_pieces(const Pieces& pieces, int rank, int size);

}  // namespace ring_attention
