#include "ring_attention/parallel/balance/tiles.hpp"

namespace ring_attention {
namespace {

Index tiles_of(const TokenRange& range, Index side) { return (range.count + side - 1) / side; }

}  // namespace

Index visible_tiles(const Mask& mask, const TokenRange& queries, const TokenRange& keys, Index side) {
  const Index rows = tiles_of(queries, side), columns = tiles_of(keys, side);
  if (rows * columns == 0) return 0;
  const Coverage coverage = mask.coverage(queries, keys);
  if (coverage == Coverage::none) return 0;
  if (coverage == Coverage::full || rows * columns == 1) return rows * columns;
  const auto halves = [&](const TokenRange& range, Index tiles, const auto& of) {
    const Index first = tiles / 2 * side;
    return of(range.slice(0, first)) + of(range.slice(first, range.count - first));
  };
  if (rows >= columns)
    return halves(queries, rows,
                  [&](const TokenRange& some) { return visible_tiles(mask, some, keys, side); });
  return halves(keys, columns,
                [&](const TokenRange& some) { return visible_tiles(mask, queries, some, side); });
}

Index visible_tiles(const Mask& mask, const TokenRanges& queries, const TokenRanges& keys, Index side) {
  Index tiles = 0;
  for (const TokenRange& rows : queries)
    for (const TokenRange& columns : keys) tiles += visible_tiles(mask, rows, columns, side);
  return tiles;
}

ChunkTiles::ChunkTiles(const Mask& mask, std::vector<Index> cuts, Index side)
    : cuts_(std::move(cuts)), tiles_(static_cast<std::size_t>(size() * size())) {
  if (size() > 0) count(mask, {0, size()}, {0, size()}, side);
}

ChunkTiles::ChunkTiles(const ChunkTiles& chunks, const std::vector<Index>& firsts) {
  std::vector<std::size_t> group_of;
  for (std::size_t group = 0; group + 1 < firsts.size(); ++group)
    group_of.insert(group_of.end(), static_cast<std::size_t>(firsts[group + 1] - firsts[group]), group);
  for (const Index first : firsts) cuts_.push_back(chunks.cuts_[static_cast<std::size_t>(first)]);
  tiles_.resize(static_cast<std::size_t>(size() * size()));
  for (std::size_t queries = 0; queries < group_of.size(); ++queries) {
    const std::span<const std::int32_t> row = chunks.row(static_cast<Index>(queries));
    std::int32_t* const sums = tiles_.data() + group_of[queries] * static_cast<std::size_t>(size());
    for (std::size_t keys = 0; keys < row.size(); ++keys) sums[group_of[keys]] += row[keys];
  }
}

TokenRange ChunkTiles::range(const Interval& chunks) const {
  const Index begin = cuts_[static_cast<std::size_t>(chunks.begin)];
  return {begin, 1, cuts_[static_cast<std::size_t>(chunks.end)] - begin};
}

void ChunkTiles::count(const Mask& mask, const Interval& queries, const Interval& keys, Index side) {
  const Coverage coverage = mask.coverage(range(queries), range(keys));
  if (coverage == Coverage::none) return;
  const Index rows = queries.end - queries.begin, columns = keys.end - keys.begin;
  if (coverage == Coverage::full) {
    for (Index i = queries.begin; i < queries.end; ++i)
      for (Index j = keys.begin; j < keys.end; ++j)
        tiles_[static_cast<std::size_t>(i * size() + j)] =
            static_cast<std::int32_t>(tiles_of(tokens(i), side) * tiles_of(tokens(j), side));
  } else if (rows * columns == 1) {
    tiles_[static_cast<std::size_t>(queries.begin * size() + keys.begin)] =
        static_cast<std::int32_t>(visible_tiles(mask, range(queries), range(keys), side));
  } else if (rows >= columns) {
    const Index middle = queries.begin + rows / 2;
    count(mask, {queries.begin, middle}, keys, side);
    count(mask, {middle, queries.end}, keys, side);
  } else {
    const Index middle = keys.begin + columns / 2;
    count(mask, queries, {keys.begin, middle}, side);
    count(mask, queries, {middle, keys.end}, side);
  }
}

}  // namespace ring_attention
