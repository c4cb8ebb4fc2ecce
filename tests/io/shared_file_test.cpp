#include "io/shared_file.hpp"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "support/input_error.hpp"
#include "support/temporary_directory.hpp"

namespace ring_attention::test {
namespace {

using Bytes = std::array<std::byte, 4>;

constexpr Index far = (Index{5} << 30U) + 1;  // behind what 32 bits count

/// A sparse file that ends 4 bytes after `far`.
std::string long_file(const TemporaryDirectory& directory) {
  std::string path = directory / "long";
  std::ofstream(path).close();
  std::filesystem::resize_file(path, far + 4);
  return path;
}

TEST(SharedFile, ReadsWhatWasWrittenFarBehindTheBeginning) {
  const TemporaryDirectory directory;
  const std::string path = long_file(directory);
  const Bytes written{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  SharedFile out(0, path, FileAccess::write);
  out.require_size(far + 4);
  out.write(far, written);
  out.close();
  const SharedFile in(0, path, FileAccess::read);
  Bytes found{};
  in.read(far, found);
  EXPECT_EQ(found, written);
  in.read(far - (Index{4} << 30U), found);  // the place with the same low 32 bits
  EXPECT_EQ(found, Bytes{});
}

TEST(SharedFile, RefusesAFileThatEndsTooEarly) {
  const TemporaryDirectory directory;
  const SharedFile in(3, long_file(directory), FileAccess::read);
  Bytes found{};
  expect_input_error([&] { in.read(far + 1, found); }, "rank 3 moved 3 bytes where 4 were due");
  expect_input_error([&] { in.require_size(7); }, "rank 3 finds 5368709125 bytes where rank 0 found 7 in");
}

TEST(SharedFile, SaysWhyItCannot) {
  const TemporaryDirectory directory;
  expect_input_error([&] { SharedFile(1, directory / "none", FileAccess::read); },
                     "rank 1 cannot read it: No such file or directory: all ranks need the same file");
  expect_input_error([&] { SharedFile(2, directory.path(), FileAccess::write); },
                     "rank 2 cannot write it: Is a directory: check the directory");
}

}  // namespace
}  // namespace ring_attention::test
