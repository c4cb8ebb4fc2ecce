#include "io/npy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "ring_attention/core/error.hpp"
#include "support/input_error.hpp"
#include "support/npy_bytes.hpp"
#include "support/temporary_directory.hpp"

namespace ring_attention {
namespace {

using test::as_bytes;
using test::expect_input_error;
using test::npy_bytes;
using test::raw;
using test::TemporaryDirectory;

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The bytes of np.array([...], '<f2'): ordinary, subnormal, the largest, infinities, NaN.
TEST(NpyElements, HalvesAreExact) {
  const std::string file = npy_bytes(
      "{'descr': '<f2', 'fortran_order': False, 'shape': (2, 5)}",
      raw<std::uint16_t>({0x3c00, 0xb800, 0x0001, 0x7bff, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0x03ff, 0x3555}));
  const auto single = parse_npy<float>(as_bytes(file), "h.npy");
  const auto array = parse_npy<double>(as_bytes(file), "h.npy");
  EXPECT_EQ(array.shape(), (Shape{1, 1, 2, 5}));
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<double> want{1,        -0.5,      0x1p-24, 65504,          -0.0,
                                 infinity, -infinity, 0,       1023 * 0x1p-24, 1365 * 0x1p-12};
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (i == 7) {
      EXPECT_TRUE(std::isnan(array.data()[i]) && std::isnan(single.data()[i]));
      continue;
    }
    EXPECT_EQ(array.data()[i], want[i]) << i;
    EXPECT_EQ(single.data()[i], static_cast<float>(want[i])) << i;
  }
  EXPECT_TRUE(std::signbit(array.data()[4]));
}

TEST(NpyElements, FloatAndDouble) {
  const std::string singles =
      npy_bytes("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3)}", raw<float>({0.1F, -2, 3e38F}));
  const std::string doubles =
      npy_bytes("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3)}", raw<double>({0.1, -2, 1e300}));
  EXPECT_EQ(parse_npy<double>(as_bytes(singles), "f").data()[0], static_cast<double>(0.1F));
  EXPECT_EQ(parse_npy<double>(as_bytes(doubles), "d").data()[2], 1e300);
  EXPECT_EQ(parse_npy<float>(as_bytes(doubles), "d").data()[0], 0.1F);
  EXPECT_TRUE(std::isinf(parse_npy<float>(as_bytes(doubles), "d").data()[2]));
}

TEST(NpyFile, WhatIsWrittenIsRead) {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.npy";
  Tensor<double> array(Shape{2, 3, 257, 129});  // more than one staging buffer
  for (Index i = 0; i < array.size(); ++i) array.data()[i] = std::sin(static_cast<double>(i));
  write_npy<double>(path, array);
  EXPECT_FALSE(std::filesystem::exists(temporary_name(path)));
  EXPECT_EQ(read_npy_header(path).extents, (std::vector<Index>{2, 3, 257, 129}));
  const Tensor<double> back = read_npy<double>(path);
  EXPECT_EQ(back.shape(), array.shape());
  EXPECT_TRUE(std::equal(array.data(), array.data() + array.size(), back.data()));

  const Tensor<float> narrow = read_npy<float>(path);
  write_npy<float>(path, narrow, {6, 33153});
  EXPECT_EQ(read_file(path).size(), 128U + 4U * static_cast<std::size_t>(array.size()));
  EXPECT_EQ(read_npy<double>(path).shape(), (Shape{1, 1, 6, 33153}));
  EXPECT_EQ(read_npy<float>(path).data()[1000], narrow.data()[1000]);
  EXPECT_THROW(write_npy<float>(path, narrow, {6, 257}), Error);
}

TEST(NpyFile, IntegersOfOneDimension) {
  const TemporaryDirectory directory;
  const std::string path = directory / "boundaries.npy";
  write_file(path, format_npy_header(Dtype::int64, {3}) + raw<std::int64_t>({0, -5, Index{1} << 40}));
  EXPECT_EQ(read_npy_integers(path), (std::vector<Index>{0, -5, Index{1} << 40}));
  write_file(path, format_npy_header(Dtype::int32, {2}) + raw<std::int32_t>({-7, 2'000'000'000}));
  EXPECT_EQ(read_npy_integers(path), (std::vector<Index>{-7, 2'000'000'000}));
  write_file(path, format_npy_header(Dtype::int32, {0}));
  EXPECT_TRUE(read_npy_integers(path).empty());
}

TEST(NpyFile, AFailedWriteLeavesTheOldFile) {
  const TemporaryDirectory directory;
  const Tensor<float> array(Shape{1, 1, 2, 2}, 1.5F);
  expect_input_error([&] { write_npy<float>(directory / "none/a.npy", array); },
                     "cannot be written: No such file");
  // A directory has this name: the file is written under its temporary name, not renamed, and removed.
  std::filesystem::create_directory(directory / "taken.npy");
  write_file(directory / "taken.npy/inside", "x");
  expect_input_error([&] { write_npy<float>(directory / "taken.npy", array); },
                     "cannot be written: Is a directory");
  EXPECT_TRUE(std::filesystem::exists(directory / "taken.npy/inside"));
  EXPECT_FALSE(std::filesystem::exists(directory / "taken.npy.part"));
}

}  // namespace
}  // namespace ring_attention
