// Errors of files are known to all ranks, as one line, and do not change the old files.

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "io/npy_file.hpp"
#include "ring_attention/core/error.hpp"
#include "support/ranks_and_files.hpp"

namespace ring_attention {
namespace {

namespace fs = std::filesystem;
using namespace test;

class NpyFileErrors : public RanksAndFiles {};

TEST_F(NpyFileErrors, AFileThatChangesAfterItsHeaderWasRead) {
  const Shape shape{1, 1, 20, 3};
  if (comm_.rank() == 0) write_npy<float>(at("k.npy"), shard_of<float>(shape, whole(20)));
  const NpyReader reader(comm_, at("k.npy"));
  for (const Placement& placement : {contiguous, striped}) {
    const TokenRanges ranges = placement(shape.seq, comm_.rank(), comm_.size());
    Tensor<float> shard(shape.with_seq(count(ranges)));
    wait();
    if (comm_.rank() == 0) fs::resize_file(at("k.npy"), 200);
    wait();
    expect_agreed_error([&] { reader.read<float>(shard, ranges); }, "finds 200 bytes where rank 0 found 368");
    wait();
    if (comm_.rank() == 0) fs::remove(at("k.npy"));
    wait();
    expect_agreed_error([&] { reader.read<float>(shard, ranges); }, "cannot read it: No such file");
    if (comm_.rank() == 0) write_npy<float>(at("k.npy"), shard_of<float>(shape, whole(20)));
    wait();
  }
}

TEST_F(NpyFileErrors, MisuseIsAnErrorOfTheRankThatCommitsIt) {
  const Shape shape{1, 2, 20, 3};
  if (comm_.rank() == 0) write_npy<float>(at("k.npy"), shard_of<float>(shape, whole(20)));
  const NpyReader reader(comm_, at("k.npy"));
  Tensor<float> shard(shape.with_seq(2));
  EXPECT_THROW(reader.read<float>(shard, {{0, 1, 3}}), Error);
  EXPECT_THROW(reader.read<float>(shard, {{19, 1, 2}}), Error);
  EXPECT_THROW(reader.read<float>(shard, {{-1, 1, 2}}), Error);
  EXPECT_THROW(reader.read<float>(shard, {{4, 0, 2}}), Error);
  EXPECT_THROW(reader.read_head<float>(0, 2, shard), Error);
  EXPECT_THROW(reader.read_head<float>(0, 1, shard), Error);
  NpyWriter writer(comm_, at("out.npy"), shape, array_extents(shape, 4), Dtype::float32);
  EXPECT_THROW(commit(comm_, {&writer}), Error);
}

TEST_F(NpyFileErrors, OutputsThatCannotBeMade) {
  const Shape shape{1, 1, 4, 2};
  const auto make = [&](const std::string& path) {
    (void)NpyWriter(comm_, path, shape, array_extents(shape, 4), Dtype::float32);
  };
  expect_agreed_error([&] { make(at("none/out.npy")); },
                      "cannot be written: No such file or directory: check the directory");
  put("file", "x");
  expect_agreed_error([&] { make(at("file/out.npy")); }, "cannot be written: Not a directory");
  if (comm_.rank() == 0) fs::create_directories(at("taken.npy.part/inside"));
  wait();
  expect_agreed_error([&] { make(at("taken.npy")); }, "cannot be written: Is a directory");
  if (geteuid() == 0) return;  // root may write everywhere
  if (comm_.rank() == 0) fs::permissions(path_, fs::perms::owner_read | fs::perms::owner_exec);
  wait();
  expect_agreed_error([&] { make(at("out.npy")); }, "cannot be written: Permission denied");
  if (comm_.rank() == 0) fs::permissions(path_, fs::perms::owner_all);
}

TEST_F(NpyFileErrors, AStaleTemporaryFileIsOverwritten) {
  const Shape shape{1, 1, 9, 2};
  const TokenRanges ranges = contiguous(shape.seq, comm_.rank(), comm_.size());
  put("out.npy.part", std::string(10'000, 'z'));
  NpyWriter writer(comm_, at("out.npy"), shape, array_extents(shape, 2), Dtype::float64);
  writer.write<double>(shard_of<double>(shape, ranges), ranges);
  commit(comm_, {&writer});
  EXPECT_TRUE(same(read_npy<double>(at("out.npy")), shard_of<double>(shape, whole(9))));
  EXPECT_FALSE(fs::exists(at("out.npy.part")));
}

TEST_F(NpyFileErrors, WithoutCommitTheOldFileStays) {
  const Shape shape{1, 1, 9, 2};
  const TokenRanges ranges = contiguous(shape.seq, comm_.rank(), comm_.size());
  put("out.npy", "the old one");
  {
    NpyWriter writer(comm_, at("out.npy"), shape, array_extents(shape, 2), Dtype::float64);
    EXPECT_TRUE(fs::exists(at("out.npy.part")));
    writer.write<double>(shard_of<double>(shape, ranges), ranges);
    wait();
  }
  wait();
  EXPECT_EQ(contents("out.npy"), "the old one");
  EXPECT_FALSE(fs::exists(at("out.npy.part")));
}

// One rank finds an error of its own before the commit: all ranks stop together.
TEST_F(NpyFileErrors, OneRanksFailureBeforeCommitLeavesAllOldFiles) {
  const Shape shape{1, 1, 9, 2};
  const TokenRanges ranges = contiguous(shape.seq, comm_.rank(), comm_.size());
  put("out.npy", "old out");
  put("lse.npy", "old lse");
  expect_agreed_error(
      [&] {
        NpyWriter out(comm_, at("out.npy"), shape, array_extents(shape, 2), Dtype::float64);
        NpyWriter lse(comm_, at("lse.npy"), shape.per_row(), row_extents(shape, 2), Dtype::float64);
        out.write<double>(shard_of<double>(shape, ranges), ranges);
        lse.write<double>(shard_of<double>(shape.per_row(), ranges), ranges);
        agree(comm_, [&] {
          if (comm_.rank() == comm_.size() - 1) throw InputError("k.npy", "changed meanwhile", "leave it");
        });
        commit(comm_, {&out, &lse});
      },
      "k.npy: changed meanwhile");
  wait();
  EXPECT_EQ(contents("out.npy"), "old out");
  EXPECT_EQ(contents("lse.npy"), "old lse");
  EXPECT_FALSE(fs::exists(at("out.npy.part")) || fs::exists(at("lse.npy.part")));
}

// The temporary file of one rank is gone when that rank writes: all ranks get the error, in both ways of writing.
TEST_F(NpyFileErrors, AWriteThatFailsIsAgreed) {
  const Shape shape{1, 1, 30, 2};
  for (const Placement& placement : {contiguous, striped}) {
    const TokenRanges ranges = placement(shape.seq, comm_.rank(), comm_.size());
    put("out.npy", "the old one");
    {
      NpyWriter writer(comm_, at("out.npy"), shape, array_extents(shape, 2), Dtype::float64);
      wait();
      if (comm_.rank() == 0) fs::remove(at("out.npy.part"));
      wait();
      expect_agreed_error([&] { writer.write<double>(shard_of<double>(shape, ranges), ranges); },
                          "out.npy.part: rank 0 cannot write it: No such file");
    }
    EXPECT_EQ(contents("out.npy"), "the old one");
    wait();
  }
}

TEST_F(NpyFileErrors, ACommitThatFailsIsAgreed) {
  const Shape shape{1, 1, 9, 2};
  const TokenRanges ranges = contiguous(shape.seq, comm_.rank(), comm_.size());
  if (comm_.rank() == 0) fs::create_directories(at("out.npy/inside"));
  wait();
  {
    NpyWriter writer(comm_, at("out.npy"), shape, array_extents(shape, 2), Dtype::float64);
    writer.write<double>(shard_of<double>(shape, ranges), ranges);
    expect_agreed_error([&] { commit(comm_, {&writer}); }, "out.npy: cannot be written: Is a directory");
  }
  wait();
  EXPECT_FALSE(fs::exists(at("out.npy.part")));
}

}  // namespace
}  // namespace ring_attention
