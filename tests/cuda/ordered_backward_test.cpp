// The order in which the blocks of wgmma-ordered add to dQ: it has no deadlock, costs little time, and fixes the bits.

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <queue>

#include "cuda/cuda_runs.hpp"
#include "emulator/language.hpp"
#include "ring_attention/cuda/kernels/common/backward_dkdv_wgmma.cuh"

namespace ring_attention::test {
namespace {

using namespace cuda;          // NOLINT: the kernel's own
using namespace cuda::hopper;  // NOLINT

constexpr int dim = 128;
constexpr int tile_queries = tile_queries_for(dim);

/// What the queries of a tile see, as prepare_queries computes it.
struct TileSees {
  std::array<Visibility, max_ranges> ranges;
  [[nodiscard]] Visibility of_range(int range) const { return ranges.at(static_cast<std::size_t>(range)); }
};

/// A task of the kernel, without its arrays, and the turns at each tile of queries.
struct Ordered {
  AttentionTask task{};
  std::vector<Interval> visible;
  std::vector<TileSees> tiles;
  std::vector<int> first_turn;

  Ordered(int heads, int kv_heads, const Mask& mask, const TokenRanges& queries, const TokenRanges& keys) {
    task.batch = 1;
    task.heads = heads;
    task.kv_heads = kv_heads;
    task.dim = dim;
    task.queries = static_cast<int>(count(queries));
    for (const TokenRange& range : keys) {
      task.range[task.ranges++] = {range, task.keys};
      task.keys += static_cast<int>(range.count);
    }
    for (const Index query : positions(queries)) visible.push_back(mask.visible(query));
    for (int first = 0; first < task.queries; first += tile_queries) tiles.push_back(seen_from(first));
    for (int range = 0; range < task.ranges; ++range)
      for (const TileSees& tile : tiles) first_turn.push_back(first_turn_of(task, tile, range));
  }

  [[nodiscard]] TileSees seen_from(int first) const {
    TileSees all{};
    for (int range = 0; range < task.ranges; ++range) {
      Visibility& some = all.ranges.at(static_cast<std::size_t>(range));
      some.any = {no_key, 0};
      for (int query = first; query < std::min(first + tile_queries, task.queries); ++query)
        if (const KeyInterval keys =
                visible_keys(task.range[range], visible[static_cast<std::size_t>(query)]);
            keys.begin < keys.end)
          some = united(some, {keys, keys});
    }
    return all;
  }

  [[nodiscard]] int turn(int range, int key_tile, int tile) {
    AllQueries<tile_queries> all{};
    all.tiles = static_cast<int>(tiles.size());
    all.first_turn = first_turn.data();
    return all.turn(range, key_tile, tile);
  }
};

using KeyTileOf = int (*)(const TileOrder&, int place);
int first_keys_first(const TileOrder&, int place) { return place; }  // the mutant

using Addition = std::function<void(const KeyTile& keys, int head, int tile)>;

/// The additions of all blocks in the order of their numbers: `begins` before each block, then what it adds.
void for_each_block(const Ordered& a, KeyTileOf key_tile_of, const std::function<void()>& begins,
                    const Addition& adds) {
  const TileOrder order = order_of_keys(a.task, tiles_of_keys(a.task, tile_rows));
  const int group = a.task.heads / a.task.kv_heads;
  for (int number = 0; number < order.count; ++number) {
    const TileOrder::Place place = order.at(number);
    const KeyTile keys(a.task, key_tile_of(order, place.tile), tile_rows);
    begins();
    for (int head = place.head * group; head < (place.head + 1) * group; ++head)
      for (int tile = 0; tile < static_cast<int>(a.tiles.size()); ++tile)
        if (a.tiles[static_cast<std::size_t>(tile)]
                .of_range(keys.range)
                .includes_some(keys.first_key, keys.keys))
          adds(keys, head, tile);
  }
}

/// The number of additions whose turn has not come when all blocks with lower numbers, and no others, have added.
int out_of_turn(Ordered a, KeyTileOf key_tile_of) {
  std::vector<int> counters(a.tiles.size() * static_cast<std::size_t>(a.task.heads));
  int wrong = 0;
  for_each_block(
      a, key_tile_of, [] {},
      [&](const KeyTile& keys, int head, int tile) {
        const int key_tile = (keys.first_key - static_cast<int>(a.task.range[keys.range].first)) / tile_rows;
        int& counter =
            counters[static_cast<std::size_t>(head) * a.tiles.size() + static_cast<std::size_t>(tile)];
        wrong += counter++ == a.turn(keys.range, key_tile, tile) ? 0 : 1;
      });
  return wrong;
}

/// When the last block ends, over the ideal: all work divided by the number of multiprocessors. One block fits on each; the
/// next one starts when a block ends. A block computes for one unit of time a tile of queries and adds when the block
/// before it has added there. Other units: 1.5 to begin and to end, 0.3 until the next block sees the counter.
double time_over_ideal(const Ordered& a, KeyTileOf key_tile_of, int multiprocessors) {
  constexpr double begin_and_end = 1.5, seen_after = 0.3;
  std::priority_queue<double, std::vector<double>, std::greater<>> ends;
  for (int i = 0; i < multiprocessors; ++i) ends.push(0);
  std::vector<double> added(a.tiles.size() * static_cast<std::size_t>(a.task.heads));
  double now = 0, work = 0, last = 0;
  bool running = false;
  const auto end = [&] {
    if (running) ends.push(now);
    last = std::max(last, now);
  };
  for_each_block(
      a, key_tile_of,
      [&] {
        end();
        now = ends.top() + begin_and_end;
        ends.pop();
        running = true;
        work += begin_and_end;
      },
      [&](const KeyTile&, int head, int tile) {
        double& there =
            added[static_cast<std::size_t>(head) * a.tiles.size() + static_cast<std::size_t>(tile)];
        now = std::max(now + 1, there);
        there = now + seen_after;
        work += 1;
      });
  end();
  return last / (work / multiprocessors);
}

Ordered causal(int seq, int heads) { return {heads, heads, Mask::causal(), whole(seq), whole(seq)}; }

// So there is no deadlock, even if one block fits on the GPU.
TEST(OrderedBackward, WaitsForBlocksWithLowerNumbersOnly) {
  std::vector<Ordered> all;
  const auto add = [&](const Mask& mask, const TokenRanges& queries, const TokenRanges& keys) {
    all.emplace_back(4, 2, mask, queries, keys);
  };
  const TokenRanges zigzag{{0, 1, 500}, {3500, 1, 500}}, other{{500, 1, 500}, {3000, 1, 500}};
  const Mask window{.left = 300, .right = 0}, wide{.left = 700, .right = 900};
  for (const Mask& mask :
       {Mask{}, Mask::causal(), Mask::causal(777), Mask::causal(-300), window, wide,
        Mask{.documents = std::make_shared<Documents>(std::vector<Index>{0, 70, 1900, 4000})}}) {
    add(mask, whole(1000), whole(1000));
    add(mask, zigzag, zigzag);
    add(mask, zigzag, other);
    add(mask, other, zigzag);
    add(mask, {{1, 3, 400}}, {{2, 3, 400}});
  }
  for (const Ordered& a : all) EXPECT_EQ(out_of_turn(a, key_tile_in_turns), 0);
  EXPECT_GT(out_of_turn(causal(1000, 2), first_keys_first), 0);
}

TEST(OrderedBackward, LosesLittleTimeWithTurns) {
  for (const auto& [seq, heads] : {std::pair{2048, 128}, {8192, 32}, {32768, 16}}) {
    SCOPED_TRACE("S = " + std::to_string(seq) + ", " + std::to_string(heads) + " heads");
    const Ordered of_causal = causal(seq, heads);
    const double time = time_over_ideal(of_causal, key_tile_in_turns, 132),
                 mutant = time_over_ideal(of_causal, first_keys_first, 132);
    RecordProperty("causal_" + std::to_string(seq), std::to_string(time));
    RecordProperty("first_keys_first_" + std::to_string(seq), std::to_string(mutant));
    EXPECT_LE(time, 1.08);
    EXPECT_GT(mutant, 1.15);  // the bound can fail
    EXPECT_LE(time_over_ideal({heads, heads, Mask{}, whole(seq), whole(seq)}, key_tile_in_turns, 132), 1.08);
  }
}

template <class T>
void expect_same_bits(Index dim_of_case) {
  const Case what{.kv_heads = 1,
                  .group = 2,
                  .queries = 300,
                  .keys = 600,
                  .dim = dim_of_case,
                  .scoring = {0.2, Mask::causal(300)}};
  const std::vector<TokenRanges> pieces{{{0, 1, 200}, {400, 1, 200}}, {{200, 1, 200}}};
  const auto problem = problem_in<T>(what, nullptr);
  const auto run = [&](std::uint64_t seed, unsigned multiprocessors) {
    emulator::options() = {};
    emulator::options().seed = seed;
    emulator::options().multiprocessors = multiprocessors;
    auto gradients = backward_in_pieces<T>(problem, pieces, {.kernel = "wgmma-ordered"});
    emulator::options() = {};
    return gradients;
  };
  const auto first = run(1, 132);
  EXPECT_TRUE(gradients_agree_in(unit_of<T>, first, problem));
  for (const unsigned multiprocessors : {1U, 2U, 132U})  // one block, or two or all blocks at the same time
    for (std::uint64_t seed = 2; seed <= 4; ++seed)
      EXPECT_TRUE(same_bits(first, run(seed, multiprocessors))) << multiprocessors << " multiprocessors";
}

TEST(OrderedBackward, HasTheSameBitsInEverySchedule) {
  expect_same_bits<Bf16>(64);
  expect_same_bits<Bf16>(128);
}

}  // namespace
}  // namespace ring_attention::test
