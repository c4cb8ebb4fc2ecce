// Files of ranks against files of one process: write_npy and read_npy.

#include "io/npy_file.hpp"

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>

#include "support/npy_bytes.hpp"
#include "support/ranks_and_files.hpp"

namespace ring_attention {
namespace {

namespace fs = std::filesystem;
using namespace test;

class NpyFile : public RanksAndFiles {};

/// Few files a test: where ranks share cores, a collective call may take tens of milliseconds.
class NpyFilePlacement : public RanksAndFiles, public testing::WithParamInterface<Placement> {
 protected:
  [[nodiscard]] TokenRanges ranges_of(const Shape& shape) const {
    return GetParam()(shape.seq, comm_.rank(), comm_.size());
  }

  template <class T>
  void expect_read(const std::string& file, const Shape& shape) const {
    const NpyReader reader(comm_, at(file));
    EXPECT_EQ(reader.shape(), shape);
    EXPECT_EQ(reader.dimensions(), 4U);
    Tensor<T> shard(shape.with_seq(count(ranges_of(shape))), T{-1});
    reader.read<T>(shard, ranges_of(shape));
    EXPECT_TRUE(same(shard, shard_of<T>(shape, ranges_of(shape)))) << file << " " << to_string(shape);
  }
};
INSTANTIATE_TEST_SUITE_P(, NpyFilePlacement, testing::ValuesIn(placements));

TEST_P(NpyFilePlacement, EveryRankReadsItsTokensFromEveryDtype) {
  const Shape shape{2, 3, 17, 4};
  const Tensor<double> all = shard_of<double>(shape, whole(shape.seq));
  const std::vector<Index> extents = array_extents(shape, 4);
  std::vector<std::uint16_t> halves;
  for (Index i = 0; i < all.size(); ++i)
    halves.push_back(Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(static_cast<float>(all.data()[i]))));
  if (comm_.rank() == 0) {
    write_npy<double>(at("f8.npy"), all, extents);
    write_npy<float>(at("f4.npy"), converted<float>(all.view()), extents);
  }
  put("f2.npy", format_npy_header(Dtype::float16, extents) + raw(halves));
  expect_read<double>("f8.npy", shape);
  expect_read<float>("f8.npy", shape);
  expect_read<double>("f4.npy", shape);
  expect_read<float>("f4.npy", shape);
  expect_read<double>("f2.npy", shape);
  expect_read<float>("f2.npy", shape);
}

TEST_P(NpyFilePlacement, FewerTokensThanRanks) {
  for (const Shape& shape : {Shape{1, 1, 1, 1}, Shape{1, 2, 5, 3}}) {
    const TokenRanges ranges = ranges_of(shape);
    NpyWriter writer(comm_, at("few.npy"), shape, array_extents(shape, 4), Dtype::float32);
    writer.write<float>(shard_of<float>(shape, ranges), ranges);
    commit(comm_, {&writer});
    EXPECT_TRUE(same(read_npy<float>(at("few.npy")), shard_of<float>(shape, whole(shape.seq))));
    expect_read<float>("few.npy", shape);
  }
}

TEST_P(NpyFilePlacement, WhatRanksWriteOneProcessReads) {
  const Shape shape{2, 3, 17, 4};
  const TokenRanges ranges = ranges_of(shape);
  NpyWriter out(comm_, at("out.npy"), shape, array_extents(shape, 4), Dtype::float32);
  NpyWriter wide(comm_, at("wide.npy"), shape, array_extents(shape, 4), Dtype::float64);
  NpyWriter lse(comm_, at("lse.npy"), shape.per_row(), row_extents(shape, 4), Dtype::float64);
  out.write<float>(shard_of<float>(shape, ranges), ranges);
  wide.write<float>(shard_of<float>(shape, ranges), ranges);
  lse.write<double>(shard_of<double>(shape.per_row(), ranges), ranges);
  commit(comm_, {&out, &wide, &lse});
  const auto want = shard_of<double>(shape, whole(shape.seq));
  EXPECT_TRUE(same(read_npy<double>(at("out.npy")), want));
  EXPECT_TRUE(same(read_npy<double>(at("wide.npy")), want));
  const auto rows = shard_of<double>(shape.per_row(), whole(shape.seq));
  EXPECT_EQ(contents("lse.npy"), format_npy_header(Dtype::float64, {2, 3, 17}) +
                                     raw(std::vector<double>(rows.data(), rows.data() + rows.size())));
  EXPECT_FALSE(fs::exists(at("out.npy.part")));
}

// The same bytes as one process writes: nothing in the file depends on the number of ranks.
TEST_F(NpyFile, TheFileIsTheOneOfASingleProcess) {
  const Shape shape{1, 2, 33, 5};
  const TokenRanges ranges = zigzag(shape.seq, comm_.rank(), comm_.size());
  NpyWriter writer(comm_, at("ranks.npy"), shape, array_extents(shape, 3), Dtype::float32);
  writer.write<float>(shard_of<float>(shape, ranges), ranges);
  commit(comm_, {&writer});
  if (comm_.rank() == 0) {
    write_npy<float>(at("one.npy"), shard_of<float>(shape, whole(shape.seq)), array_extents(shape, 3));
    EXPECT_EQ(contents("ranks.npy"), contents("one.npy"));
  }
}

TEST_F(NpyFile, OneHeadAtATimeAndEachRankItsOwn) {
  const Shape shape{2, 3, 19, 4};
  const auto all = shard_of<float>(shape, whole(shape.seq));
  if (comm_.rank() == 0) write_npy<float>(at("k.npy"), all);
  const NpyReader reader(comm_, at("k.npy"));
  for (Index head = 0; head < 6; ++head) {
    const Index mine = (head + comm_.rank()) % 6;
    Tensor<double> tokens(Shape{1, 1, 19, 4});
    reader.read_head<double>(mine / 3, mine % 3, tokens);
    const float* want = all.view().head(mine / 3, mine % 3);
    EXPECT_TRUE(std::equal(tokens.data(), tokens.data() + tokens.size(), want));
  }
}

// More than one staging buffer a rank, in ranges of stride 1 and strided.
TEST_F(NpyFile, LargerThanTheStagingBuffer) {
  const Shape shape{1, 2, 30'011, 64};  // 15 MiB a head
  for (const Placement& placement : {one_rank, striped}) {
    const TokenRanges ranges = placement(shape.seq, comm_.rank(), comm_.size());
    Tensor<float> shard(shape.with_seq(count(ranges)));
    const std::vector<Index> where = positions(ranges);
    const auto value = [](Index h, Index position, Index d) {
      return static_cast<float>((position * 64 + d) % 9973 + h);
    };
    for (Index h = 0; h < 2; ++h)
      for (Index s = 0; s < shard.shape().seq; ++s)
        for (Index d = 0; d < 64; ++d)
          shard.view()(0, h, s, d) = value(h, where[static_cast<std::size_t>(s)], d);
    NpyWriter writer(comm_, at("large.npy"), shape, array_extents(shape, 4), Dtype::float32);
    writer.write<float>(shard, ranges);
    commit(comm_, {&writer});
    Tensor<float> back(shard.shape());
    NpyReader(comm_, at("large.npy")).read<float>(back, ranges);
    EXPECT_TRUE(same(back, shard));
    if (comm_.rank() == 0) {
      const auto all = read_npy<float>(at("large.npy"));
      Index wrong = 0;
      for (Index h = 0; h < 2; ++h)
        for (Index s = 0; s < shape.seq; ++s)
          for (Index d = 0; d < 64; ++d) wrong += all.view()(0, h, s, d) != value(h, s, d);
      EXPECT_EQ(wrong, 0);
    }
    wait();
  }
}

// An element of the file has another size than one in memory: the second buffer begins where the first one ends in the file.
TEST_F(NpyFile, HalvesBeyondTheStagingBuffer) {
  const Shape shape{1, 1, 70'000, 64};                                      // 8.5 MiB
  const auto value = [](Index i) { return static_cast<float>(i % 2039); };  // a half has it exactly
  std::vector<std::uint16_t> halves;
  for (Index i = 0; i < shape.size(); ++i)
    halves.push_back(Eigen::numext::bit_cast<std::uint16_t>(Eigen::half(value(i))));
  put("halves.npy", format_npy_header(Dtype::float16, array_extents(shape, 4)) + raw(halves));
  const TokenRanges ranges = one_rank(shape.seq, comm_.rank(), comm_.size());
  Tensor<float> shard(shape.with_seq(count(ranges)));
  NpyReader(comm_, at("halves.npy")).read<float>(shard, ranges);
  Index wrong = 0;
  for (Index i = 0; i < shard.size(); ++i) wrong += shard.data()[i] != value(i);
  EXPECT_EQ(wrong, 0);
}

/// Bytes that this process has read from files so far, or written to them.
Index moved_bytes(const std::string& which) {
  std::ifstream in("/proc/self/io");
  for (std::string name; in >> name;)
    if (Index bytes = 0; in >> bytes && name == which) return bytes;
  return -1;
}

// Each rank moves its own tokens and no others; striped, its share of the file.
TEST_F(NpyFile, ARankMovesNoMoreBytesThanItsTokensHave) {
  if (moved_bytes("rchar:") < 0) GTEST_SKIP() << "no /proc/self/io";
  const Shape shape{1, 4, 5003, 32};
  for (const Placement& placement : {contiguous, zigzag, one_rank, striped}) {
    const TokenRanges ranges = placement(shape.seq, comm_.rank(), comm_.size());
    Tensor<float> shard = shard_of<float>(shape, ranges);
    const Index own = static_cast<Index>(shard.bytes());
    const Index some = 65536;  // headers, directories, a striped section's ends
    NpyWriter writer(comm_, at("moved.npy"), shape, array_extents(shape, 4), Dtype::float32);
    const Index written = moved_bytes("wchar:");
    writer.write<float>(shard, ranges);
    EXPECT_LE(moved_bytes("wchar:") - written, own + some);
    EXPECT_GE(moved_bytes("wchar:") - written, placement == striped ? 0 : own);
    commit(comm_, {&writer});
    const NpyReader reader(comm_, at("moved.npy"));
    const Index read = moved_bytes("rchar:");
    reader.read<float>(shard, ranges);
    EXPECT_LE(moved_bytes("rchar:") - read, own + some);
    EXPECT_GE(moved_bytes("rchar:") - read, placement == striped ? 0 : own);
    EXPECT_TRUE(same(shard, shard_of<float>(shape, ranges)));
    wait();
  }
}

// 2^32 and more elements. The file has holes, so it takes no space; only its last tokens are written.
TEST_F(NpyFile, CountsPast2To31) {
  const Shape shape{1, 1, (Index{1} << 29) + 5, 8};
  for (const bool strided : {false, true}) {
    const Index rank = comm_.rank();
    const Index ranks = comm_.size();
    const ring_attention::TokenRange mine =
        strided ? ring_attention::TokenRange{shape.seq - 1 - rank - 6 * ranks, 2 * ranks, 3}
                : ring_attention::TokenRange{shape.seq - 3 * (rank + 1), 1, 3};
    const TokenRanges ranges{mine};
    Tensor<float> shard(shape.with_seq(3));
    for (Index i = 0; i < shard.size(); ++i) shard.data()[i] = static_cast<float>(100 * rank + i);
    NpyWriter writer(comm_, at("huge.npy"), shape, array_extents(shape, 4), Dtype::float32);
    writer.write<float>(shard, ranges);
    commit(comm_, {&writer});
    const NpyReader reader(comm_, at("huge.npy"));
    EXPECT_EQ(reader.header().elements(), shape.size());
    Tensor<float> back(shard.shape());
    reader.read<float>(back, ranges);
    EXPECT_TRUE(same(back, shard));
    std::ifstream in(at("huge.npy"), std::ios::binary);
    in.seekg(128 + 32 * (mine.end() - 1));
    float first = -1;
    in.read(reinterpret_cast<char*>(&first), sizeof first);
    EXPECT_EQ(first, shard.view()(0, 0, 2, 0));
    wait();
  }
}

TEST_F(NpyFile, AColonInThePathIsNoFileSystem) {
  const Shape shape{1, 1, 9, 2};
  if (comm_.rank() == 0) fs::create_directory(at("12:30"));
  wait();
  for (const Placement& placement : {contiguous, striped}) {
    const TokenRanges ranges = placement(shape.seq, comm_.rank(), comm_.size());
    NpyWriter writer(comm_, at("12:30/out.npy"), shape, array_extents(shape, 2), Dtype::float64);
    writer.write<double>(shard_of<double>(shape, ranges), ranges);
    commit(comm_, {&writer});
    Tensor<double> back(shape.with_seq(count(ranges)));
    NpyReader(comm_, at("12:30/out.npy")).read<double>(back, ranges);
    EXPECT_TRUE(same(back, shard_of<double>(shape, ranges)));
  }
}

}  // namespace
}  // namespace ring_attention
