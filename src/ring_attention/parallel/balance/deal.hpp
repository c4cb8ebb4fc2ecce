/// \file
/// `Deal`: chunks of a sequence dealt to the ranks of a ring, what that costs, and how two swapped chunks change it.
#pragma once

#include <cstdint>
#include <vector>

#include "ring_attention/parallel/balance/tiles.hpp"

namespace ring_attention {

/// The tiles that each rank of a ring computes at each step: [step][rank].
class RingWork {
 public:
  explicit RingWork(int ranks)
      : ranks_(ranks), tiles_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(ranks)) {}

  [[nodiscard]] int ranks() const { return ranks_; }
  /// The tiles of `rank` with the keys of `owner`.
  [[nodiscard]] std::int32_t& tiles(int rank, int owner);
  /// The tiles of the rank that computes most in all steps together.
  [[nodiscard]] Index busiest() const;
  /// The end of the last step on each rank, in tiles, by the recurrence of lesson 14 with hops that take no time: a
  /// rank begins a step when it has computed the one before, and both neighbours have begun that one.
  /// Without a message in the last step the longest of them is the same.
  [[nodiscard]] const std::vector<std::int32_t>& ends();
  /// How many hops the K,V of each rank make: as far as the last rank that computes a tile with them.
  [[nodiscard]] std::vector<int> hops() const;

 private:
  int ranks_;
  std::vector<std::int32_t> tiles_;
  std::vector<std::int32_t> begins_, ends_;  // kept for their memory
};

/// What a deal costs; the search compares these in the order of its two phases.
struct DealCost {
  Index finish = 0;   ///< when the last rank of the ring ends, in tiles
  Index squares = 0;  ///< of the distances of the ranks' ends from their mean
  int last = 0;       ///< a rank that ends last
  Index busiest = 0;  ///< tiles of the rank that computes most
  Index hops = 0;     ///< tokens of K,V times their hops over the ring
  Index ranges = 0;   ///< runs of neighbouring chunks, of all ranks

  friend bool operator==(const DealCost&, const DealCost&) = default;
};

/// The rank of each chunk.
using RankOfChunk = std::vector<int>;

/// Which rank has which chunk. A swap changes the sums that the cost follows from, instead of adding them up again.
class Deal {
 public:
  /// \param chunks  outlives the deal  \param rank_of  the rank of each chunk
  Deal(const ChunkTiles& chunks, RankOfChunk rank_of, int ranks);

  [[nodiscard]] const RankOfChunk& rank_of() const { return rank_of_; }
  [[nodiscard]] int rank_of(Index chunk) const { return rank_of_[static_cast<std::size_t>(chunk)]; }
  [[nodiscard]] Index tokens(int rank) const { return tokens_[static_cast<std::size_t>(rank)]; }

  /// The ranks of two chunks change places. O(ranks + chunks)
  void swap(Index one, Index other);
  /// O(ranks^2) \param whole  false: finish and squares only
  [[nodiscard]] DealCost cost(bool whole);
  /// The cost after swap(one, other), which it does not make.
  [[nodiscard]] DealCost cost_of_swap(Index one, Index other, bool whole);

 private:
  /// \param sign  1, or -1 to take the swap back
  void swap_work(Index one, Index other, std::int32_t sign);
  /// The part of a swap that its own inverse takes back.
  void swap_places(Index one, Index other);
  [[nodiscard]] bool begins_run(Index chunk) const {
    const auto i = static_cast<std::size_t>(chunk);
    return i < rank_of_.size() && (i == 0 || rank_of_[i] != rank_of_[i - 1]);
  }
  /// The runs that begin with one of two chunks, or behind one: between neighbours of two ranks it counts twice, before a
  /// swap and after it.
  [[nodiscard]] Index runs_at(Index one, Index other) const;
  [[nodiscard]] std::int32_t& sum(std::vector<std::int32_t>& sums, int rank, Index chunk) const {
    return sums[static_cast<std::size_t>(rank * chunks_->size() + chunk)];
  }

  const ChunkTiles* chunks_;
  RankOfChunk rank_of_;
  std::vector<Index> tokens_;
  RingWork work_;
  std::vector<std::int32_t> as_queries_;  // [rank][chunk]: tiles of the rank's queries with the chunk as keys
  std::vector<std::int32_t> as_keys_;     // [rank][chunk]: of the chunk's queries with the rank's keys
  Index runs_ = 0;
};

}  // namespace ring_attention
