// How evenly the Hopper kernels load the multiprocessors, from the order in which their blocks get tiles.

#include <gtest/gtest.h>

#include <numeric>
#include <queue>

#include "emulator/language.hpp"
#include "ring_attention/cuda/kernels/common/backward_dkdv_wgmma.cuh"

namespace ring_attention::test {
namespace {

using namespace cuda;          // NOLINT: the kernels' own
using namespace cuda::hopper;  // NOLINT

constexpr int dim = 128;
constexpr int tile_queries = 2 * group_queries;
constexpr int queries_of_stream = tile_queries_for(dim);  // a tile of queries that passes a block of keys

// What a tile costs besides its products, in units of a tile of keys or queries.
constexpr double overhead = 1.5;

struct Attention {
  int seq, heads;

  [[nodiscard]] AttentionTask task() const {
    AttentionTask task{};
    task.batch = 1;
    task.heads = task.kv_heads = heads;
    task.dim = dim;
    task.queries = task.keys = seq;
    task.ranges = 1;
    task.range[0] = {{0, 1, seq}, 0};
    return task;
  }
};
const std::vector<Attention> shapes{{2048, 128}, {4096, 64}, {8192, 32}, {16384, 16},
                                    {32768, 16}, {4096, 16}, {8192, 16}};

std::string to_string(const Attention& a) {
  return "S = " + std::to_string(a.seq) + ", " + std::to_string(a.heads) + " heads";
}

// The costs of all tiles, in the order of their numbers.
using Costs = std::vector<double>;

Costs forward_costs(const Attention& a, bool causal) {
  const AttentionTask task = a.task();
  Costs costs;
  const TileOrder order = order_of_queries(task, tile_queries);
  for (int number = 0; number < order.count; ++number) {
    const int first = QueryTile(order, number, tile_queries).first_query;
    costs.push_back(blocks_of(causal ? std::min(first + tile_queries, a.seq) : a.seq, tile_keys) + overhead);
  }
  return costs;
}

// A block of keys meets the queries that see its first key.
Costs key_grid_costs(const Attention& a) {
  const AttentionTask task = a.task();
  const TileOrder order = order_of_keys(task, tiles_of_keys(task, tile_rows));
  Costs costs;
  for (int number = 0; number < order.count; ++number) {
    const KeyTile keys(task, order.at(number).tile, tile_rows);
    costs.push_back(blocks_of(a.seq - keys.first_key, queries_of_stream) + overhead);
  }
  return costs;
}

double mean(const Costs& costs, int blocks) {
  return std::accumulate(costs.begin(), costs.end(), 0.0) / blocks;
}

// The largest load over the mean load, if a block gets the next tile when it is ready: by kernel 6's counter, or by the
// hardware, which starts the next block of a grid when one ends.
double imbalance(const Costs& costs, int blocks) {
  std::priority_queue<double, std::vector<double>, std::greater<>> loads;
  for (int block = 0; block < blocks; ++block) loads.push(0);
  double most = 0;
  for (const double cost : costs) {
    const double load = loads.top() + cost;
    loads.pop();
    loads.push(load);
    most = std::max(most, load);
  }
  return most / mean(costs, blocks);
}

// The same if tiles are dealt in advance, in snake order: 0 1 2, 5 4 3, 6 7 8, ...
double imbalance_of_snake(const Costs& costs, int blocks) {
  Costs loads(static_cast<std::size_t>(blocks));
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const std::size_t round = i / loads.size(), at = i % loads.size();
    loads[round % 2 == 0 ? at : loads.size() - 1 - at] += costs[i];
  }
  return std::ranges::max(loads) / mean(costs, blocks);
}

TEST(LoadBalance, OfTheForwardIsEven) {
  for (const Attention& a : shapes)
    for (const int blocks : {132, 124, 108}) {
      SCOPED_TRACE(to_string(a) + ", " + std::to_string(blocks) + " multiprocessors");
      EXPECT_LT(imbalance(forward_costs(a, true), blocks), 1.06);
      const Costs full = forward_costs(a, false);
      const auto tiles = static_cast<int>(full.size());
      EXPECT_LE(imbalance(full, blocks), blocks_of(tiles, blocks) / (1.0 * tiles / blocks) + 0.01);
    }
}

TEST(LoadBalance, OfTheCausalBackwardIsEven) {
  for (const Attention& a : shapes) {
    SCOPED_TRACE(to_string(a));
    EXPECT_LT(imbalance(key_grid_costs(a), 132), 1.06);
    EXPECT_LT(imbalance(forward_costs(a, true), 132), 1.06);  // its grid of queries has the same tiles
  }
}

// The bound can fail: with tiles that are dealt in advance some multiprocessors get a long tile in each section.
TEST(LoadBalance, OfTilesDealtInAdvanceIsNot) {
  EXPECT_GT(imbalance_of_snake(forward_costs({16384, 16}, true), 132), 1.06);
  EXPECT_GT(imbalance_of_snake(forward_costs({32768, 16}, true), 132), 1.06);
}

// Every tile of every head has one number.
TEST(TileOrder, HasEveryTileOnce) {
  for (const int group : {1, 2, 4})
    for (const int groups : {1, 2, 3, 5, 7, 16})
      for (const int tiles : {1, 3, 8})
        for (const int fitting : {1, 2, 3, 6, 100}) {
          const int heads = group * groups;
          std::vector<int> times(static_cast<std::size_t>(heads * tiles));
          const TileOrder order(tiles, heads, group, cached_bytes / fitting);
          for (int number = 0; number < order.count; ++number) {
            const TileOrder::Place work = order.at(number);
            ASSERT_TRUE(work.head >= 0 && work.head < heads && work.tile >= 0 && work.tile < tiles);
            const int at = work.head * tiles + work.tile;
            ++times[static_cast<std::size_t>(at)];
          }
          EXPECT_EQ(std::ranges::count(times, 1), heads * tiles);
        }
}

}  // namespace
}  // namespace ring_attention::test
