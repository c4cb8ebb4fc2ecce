#include "ring_attention/parallel/balance/deal.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ring_attention/ring/topology.hpp"

namespace ring_attention {
namespace {

std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
std::size_t at(Index chunk) { return static_cast<std::size_t>(chunk); }

}  // namespace

std::int32_t& RingWork::tiles(int rank, int owner) {
  return tiles_[at(Ring{rank, ranks_}.step_of(owner)) * at(ranks_) + at(rank)];
}

Index RingWork::busiest() const {
  std::vector<Index> sums(at(ranks_));
  for (std::size_t i = 0; i < tiles_.size(); i += sums.size())
    for (std::size_t rank = 0; rank < sums.size(); ++rank) sums[rank] += tiles_[i + rank];
  return *std::ranges::max_element(sums);
}

const std::vector<std::int32_t>& RingWork::ends() {
  const std::size_t n = at(ranks_);
  begins_.resize(n + 2);  // those of ranks -1 .. n, in a ring
  ends_.assign(n, 0);
  for (std::size_t step = 0; step < n; ++step) {
    const std::int32_t* const tiles = tiles_.data() + step * n;
    std::ranges::copy(ends_, begins_.begin() + 1);
    begins_.front() = ends_.back();
    begins_.back() = ends_.front();
    for (std::size_t r = 0; r < n; ++r)
      ends_[r] = std::max(ends_[r] + tiles[r], std::max(begins_[r], begins_[r + 2]));
  }
  return ends_;
}

std::vector<int> RingWork::hops() const {
  std::vector<int> hops(at(ranks_));
  for (int owner = 0; owner < ranks_; ++owner) {
    const auto computes = [&](int step) {
      const int rank = Ring{owner, ranks_}.owner(ranks_ - step);  // the inverse: `step` ranks further on
      return tiles_[at(step) * at(ranks_) + at(rank)] > 0;
    };
    int& last = hops[at(owner)];
    last = ranks_ - 1;
    while (last > 0 && !computes(last)) --last;
  }
  return hops;
}

Deal::Deal(const ChunkTiles& chunks, RankOfChunk rank_of, int ranks)
    : chunks_(&chunks),
      rank_of_(std::move(rank_of)),
      tokens_(at(ranks)),
      work_(ranks),
      as_queries_(at(ranks) * at(chunks.size())),
      as_keys_(as_queries_.size()) {
  for (Index queries = 0; queries < chunks.size(); ++queries) {
    const int rank = rank_of_[at(queries)];
    tokens_[at(rank)] += chunks.tokens(queries).count;
    runs_ += begins_run(queries) ? 1 : 0;
    const std::span<const std::int32_t> row = chunks.row(queries);
    std::int32_t* const sums = &sum(as_queries_, rank, 0);
    std::vector<std::int32_t> of_ranks(at(ranks));
    for (std::size_t keys = 0; keys < row.size(); ++keys) {
      sums[keys] += row[keys];
      of_ranks[at(rank_of_[keys])] += row[keys];
    }
    for (int owner = 0; owner < ranks; ++owner) {
      sum(as_keys_, owner, queries) = of_ranks[at(owner)];
      work_.tiles(rank, owner) += of_ranks[at(owner)];
    }
  }
}

void Deal::swap_work(Index one, Index other, std::int32_t sign) {
  const int a = rank_of_[at(one)], b = rank_of_[at(other)];
  for (int rank = 0; rank < work_.ranks(); ++rank) {
    const std::int32_t queries = sign * (sum(as_keys_, rank, other) - sum(as_keys_, rank, one)),
                       keys = sign * (sum(as_queries_, rank, other) - sum(as_queries_, rank, one));
    work_.tiles(a, rank) += queries;
    work_.tiles(b, rank) -= queries;
    work_.tiles(rank, a) += keys;
    work_.tiles(rank, b) -= keys;
  }
  const auto crossed = sign * static_cast<std::int32_t>(chunks_->at(one, one) + chunks_->at(other, other) -
                                                        chunks_->at(one, other) - chunks_->at(other, one));
  work_.tiles(a, a) += crossed;
  work_.tiles(b, b) += crossed;
  work_.tiles(a, b) -= crossed;
  work_.tiles(b, a) -= crossed;
}

Index Deal::runs_at(Index one, Index other) const {
  return begins_run(one) + begins_run(one + 1) + begins_run(other) + begins_run(other + 1);
}

void Deal::swap_places(Index one, Index other) {
  const Index before = runs_at(one, other),
              longer = chunks_->tokens(one).count - chunks_->tokens(other).count;
  tokens_[at(rank_of_[at(one)])] -= longer;
  tokens_[at(rank_of_[at(other)])] += longer;
  std::swap(rank_of_[at(one)], rank_of_[at(other)]);
  runs_ += runs_at(one, other) - before;
}

void Deal::swap(Index one, Index other) {
  const int a = rank_of_[at(one)], b = rank_of_[at(other)];
  if (a == b) return;
  swap_work(one, other, 1);
  swap_places(one, other);
  const std::span<const std::int32_t> row = chunks_->row(one), other_row = chunks_->row(other);
  for (Index chunk = 0; chunk < chunks_->size(); ++chunk) {
    const std::int32_t queries = other_row[at(chunk)] - row[at(chunk)];
    const auto keys = static_cast<std::int32_t>(chunks_->at(chunk, other) - chunks_->at(chunk, one));
    sum(as_queries_, a, chunk) += queries;
    sum(as_queries_, b, chunk) -= queries;
    sum(as_keys_, a, chunk) += keys;
    sum(as_keys_, b, chunk) -= keys;
  }
}

DealCost Deal::cost_of_swap(Index one, Index other, bool whole) {
  const bool moves = rank_of_[at(one)] != rank_of_[at(other)];
  if (moves) {
    swap_work(one, other, 1);
    swap_places(one, other);
  }
  const DealCost cost = this->cost(whole);
  if (moves) {
    swap_places(one, other);
    swap_work(one, other, -1);
  }
  return cost;
}

DealCost Deal::cost(bool whole) {
  DealCost cost;
  const std::vector<std::int32_t>& ends = work_.ends();
  Index sum = 0;
  for (std::size_t rank = 0; rank < ends.size(); ++rank) {
    sum += ends[rank];
    if (ends[rank] <= cost.finish) continue;
    cost.finish = ends[rank];
    cost.last = static_cast<int>(rank);
  }
  const Index mean = sum / std::ssize(ends);
  for (const std::int32_t end : ends) cost.squares += (end - mean) * (end - mean);
  if (!whole) return cost;
  cost.busiest = work_.busiest();
  const std::vector<int> hops = work_.hops();
  for (std::size_t owner = 0; owner < hops.size(); ++owner) cost.hops += hops[owner] * tokens_[owner];
  cost.ranges = runs_;
  return cost;
}

}  // namespace ring_attention
