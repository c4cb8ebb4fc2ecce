// Lesson 16, beside the idea: the sums of a ring, its ranks one after the other in one process.
#pragma once

#include "data.hpp"
#include "mistakes.hpp"
#include "ring_attention/attention/exact/tiling.hpp"
#include "ring_attention/ring/placement.hpp"
#include "ring_attention/ring/topology.hpp"
#include "sums.hpp"

namespace ring_attention::lesson_16 {

using Tiles = std::vector<Interval>;

/// How many ranks compute, and in which order.
struct Order {
  int ranks = 1;
  PlacementKind kind = PlacementKind::contiguous;
  bool ring = true;  ///< K,V of the ranks arrive one after the other; else tiles in any order, in three parts
};

inline std::vector<Order> all_orders() {
  std::vector<Order> orders{{1, PlacementKind::contiguous, true}, {1, PlacementKind::contiguous, false}};
  for (const int ranks : {2, 3, 8})
    for (const auto kind : {PlacementKind::contiguous, PlacementKind::zigzag, PlacementKind::striped})
      for (const bool ring : {true, false}) orders.push_back({ranks, kind, ring});
  return orders;
}

/// The sums of a query: l and o.
template <class Sum>
struct QueryState {
  Sum l{1}, o{dim};
  void merge(const QueryState& other) {
    l.merge(other.l);
    o.merge(other.o);
  }
};

template <class Sum>
class OrderedSums {
 public:
  OrderedSums(const Data& data, const Order& order, Mistake mistake, std::uint64_t seed)
      : data_(data), order_(order), mistake_(mistake), random_(seed) {
    for (int rank = 0; rank < order.ranks; ++rank) own_.push_back(tiles_of_rank(rank));
  }

  Rows run() {
    rows_ = {std::vector<float>(tokens * dim), std::vector<float>(tokens), {}};
    for (int rank = 0; rank < order_.ranks; ++rank)
      for (const Interval& queries : own_[at(rank)]) {
        const Tiles keys = arrivals(rank);
        for (Index query = queries.begin; query < queries.end; ++query) attend(query, keys);
      }
    add_gradients();
    return rows_;
  }

 private:
  static constexpr float none = -std::numeric_limits<float>::infinity();
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  /// In the order of its memory.
  Tiles tiles_of_rank(int rank) const {
    const bool of_shard =
        mistake_ == "shard-tiles" && order_.kind != PlacementKind::striped;  // it has no tile
    const Placement placement = of_shard ? Placement(order_.kind, tokens, order_.ranks)
                                         : Placement(order_.kind, Tiling(tile).cuts(tokens), order_.ranks);
    Tiles tiles;
    for (const TokenRange& range : placement.ranges(rank))
      for (Index begin = range.begin; begin < range.begin + range.count;) {
        const Index first = of_shard ? begin : lesson::tile_begin(begin, tile);
        const Index end = std::min(first + tile, range.begin + range.count);
        tiles.push_back({begin, end});
        begin = end;
      }
    return tiles;
  }

  /// The tiles of keys, in the order in which this rank meets them.
  Tiles arrivals(int rank) {
    Tiles keys;
    for (int step = 0; step < order_.ranks; ++step) {
      const Tiles& shard = own_[at(Ring{rank, order_.ranks}.owner(step))];
      const bool travels = std::ranges::any_of(shard, [&](const Interval& tile_of_keys) {
        return std::ranges::any_of(own_[at(rank)],
                                   [&](const Interval& queries) { return sees(queries, tile_of_keys); });
      });
      if (travels) keys.insert(keys.end(), shard.begin(), shard.end());  // lesson 09
    }
    if (!order_.ring) std::ranges::shuffle(keys, random_);
    return keys;
  }
  [[nodiscard]] bool sees(const Interval& queries, const Interval& keys) const {
    return data_.mask.coverage({queries.begin, 1, queries.end - queries.begin},
                               {keys.begin, 1, keys.end - keys.begin}) != Coverage::none;
  }

  void attend(Index query, const Tiles& keys) {
    std::array<QueryState<Sum>, 3> parts;  // of threads, say
    for (const Interval& each : cut(query, keys))
      add_tile(parts[order_.ring ? 0 : random_() % 3], query, each);
    if (!order_.ring) std::ranges::shuffle(parts, random_);
    parts[0].merge(parts[1]);
    parts[0].merge(parts[2]);
    const double l = parts[0].l.value(0);
    for (std::size_t c = 0; c < dim; ++c)
      rows_.out[Data::at(query) + c] = static_cast<float>(parts[0].o.value(c) / l);
    rows_.lse[at(query)] = static_cast<float>(std::log2(l) * std::numbers::ln2);
  }

  /// One tile of keys as one query sees it: o 2^m and l 2^m are two terms.
  void add_tile(QueryState<Sum>& state, Index query, const Interval& keys) const {
    std::vector<float> y;
    std::vector<Index> seen;
    for (Index key = keys.begin; key < keys.end; ++key)
      if (data_.mask.allowed(query, key)) {
        y.push_back(data_.score(query, key));
        seen.push_back(key);
      }
    std::vector<float> o(dim);
    float l = 0, m = 0;
    if (!y.empty()) m = rounds_maximum() ? lesson::whole_maximum(y) : *std::ranges::max_element(y);
    for (std::size_t j = 0; j < y.size(); ++j) {
      const float p = std::exp2(y[j] - m);
      l += p;
      for (std::size_t c = 0; c < dim; ++c) o[c] += p * data_.value(seen[j])[c];
    }
    if (y.empty() && mistake_ != "hidden-tile") return;
    state.l.add(std::span(&l, 1), m);
    state.o.add(o, m);
  }
  [[nodiscard]] bool rounds_maximum() const {
    return mistake_ != "real-maximum" && !std::is_same_v<Sum, Running<float>> &&
           !std::is_same_v<Sum, Running<double>>;
  }

  /// The tiles; with `mask-tiles` the keys of consecutive tiles are cut from the first one that the query sees.
  [[nodiscard]] Tiles cut(Index query, const Tiles& keys) const {
    if (mistake_ != "mask-tiles") return keys;
    Tiles cuts;
    const Interval visible = data_.mask.visible(query);
    for (std::size_t i = 0; i < keys.size();) {
      Interval run = keys[i++];
      while (i < keys.size() && keys[i].begin == run.end) run.end = keys[i++].end;
      for (Index begin = std::max(run.begin, visible.begin); begin < run.end; begin += tile)
        cuts.push_back({begin, std::min(begin + tile, run.end)});
    }
    return cuts;
  }

  /// dV: a term for each pair of tiles. The sums travel with their keys, and the ranks add to them in turn.
  void add_gradients() {
    std::vector<Sum> sums(tokens, Sum(dim));
    std::vector<std::pair<int, int>> visits;  // rank that adds, owner of the keys
    for (int step = 0; step < order_.ranks; ++step)
      for (int rank = 0; rank < order_.ranks; ++rank)
        visits.emplace_back(rank, Ring{rank, order_.ranks}.owner(step));
    if (!order_.ring) std::ranges::shuffle(visits, random_);
    for (const auto& [rank, owner] : visits)
      for (const Interval& keys : own_[at(owner)])
        for (Index key = keys.begin; key < keys.end; ++key) {
          Sum of_rank(dim);
          add_queries(of_rank, key, own_[at(rank)]);
          sums[at(key)].merge(of_rank);
        }
    for (const Sum& sum : sums)
      for (std::size_t c = 0; c < dim; ++c) rows_.dv.push_back(static_cast<float>(sum.value(c)));
  }

  /// Column `key` of P^T dO, over the queries of a rank.
  void add_queries(Sum& sum, Index key, const Tiles& all) const {
    std::vector<float> term(dim);
    for (const Interval& queries : all) {
      bool seen = false;
      for (Index query = queries.begin; query < queries.end; ++query) {
        if (!data_.mask.allowed(query, key)) continue;
        seen = true;
        const float lse = rows_.lse[at(query)] * std::numbers::log2e_v<float>,
                    p = std::exp2(data_.score(query, key) - lse);
        for (std::size_t c = 0; c < dim; ++c) term[c] += p * data_.gradient(query)[c];
      }
      if (!seen || mistake_ == "rank-floats") continue;
      sum.add(term, 0);
      std::ranges::fill(term, 0.0F);
    }
    if (mistake_ == "rank-floats") sum.add(term, 0);
  }

  const Data& data_;
  Order order_;
  Mistake mistake_;
  std::mt19937_64 random_;
  std::vector<Tiles> own_;  // of each rank
  Rows rows_;
};

}  // namespace ring_attention::lesson_16
