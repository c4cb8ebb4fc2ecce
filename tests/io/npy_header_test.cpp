// The header of a `.npy` file: its bytes, what is refused, and the sizes and shapes it gives.

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "io/npy.hpp"
#include "ring_attention/core/error.hpp"
#include "support/input_error.hpp"
#include "support/npy_bytes.hpp"

namespace ring_attention {
namespace {

using test::as_bytes;
using test::expect_input_error;
using test::npy_bytes;

constexpr Index most = std::numeric_limits<Index>::max();

NpyHeader parse(const std::string& file) { return parse_npy_header(as_bytes(file), "q.npy"); }

/// The message with which a header is refused.
void expect_refused(const std::string& file, const std::string& part) {
  expect_input_error([&] { (void)parse(file); }, part);
  const std::string message = test::input_error([&] { (void)parse(file); });
  EXPECT_EQ(message.rfind("q.npy: ", 0), 0U) << message;
}

void expect_dictionary_refused(const std::string& dictionary, const std::string& part) {
  expect_refused(npy_bytes(dictionary), part);
}

// What NumPy 2.4 wrote for np.zeros((2, 3)), np.zeros((3,), '<f4') and np.zeros((), '<i8').
TEST(NpyHeader, BytesAreNumPys) {
  const auto numpy = [](const std::string& dictionary) {
    return std::string("\x93NUMPY\x01\x00v\x00", 10) + dictionary +
           std::string(117 - dictionary.size(), ' ') + "\n";
  };
  EXPECT_EQ(format_npy_header(Dtype::float64, {2, 3}),
            numpy("{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }"));
  EXPECT_EQ(format_npy_header(Dtype::float32, {3}),
            numpy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }"));
  EXPECT_EQ(format_npy_header(Dtype::int64, {}),
            numpy("{'descr': '<i8', 'fortran_order': False, 'shape': (), }"));
}

TEST(NpyHeader, IsPaddedToAMultipleOf64WhateverItsLength) {
  for (std::size_t dimensions = 0; dimensions < 200; ++dimensions) {
    const std::vector<Index> extents(dimensions, 1);
    const std::string bytes = format_npy_header(Dtype::float32, extents);
    EXPECT_EQ(bytes.size() % 64, 0U) << dimensions;
    EXPECT_EQ(bytes.back(), '\n');
    const NpyHeader header = parse(bytes);
    EXPECT_EQ(header.payload_offset, static_cast<Index>(bytes.size()));
    EXPECT_EQ(header.extents, extents);
  }
}

TEST(NpyHeader, ALongOneIsVersionTwo) {
  const std::vector<Index> fits(21'000, 1);
  EXPECT_EQ(format_npy_header(Dtype::float32, fits)[6], 1);
  const std::vector<Index> extents(22'000, 1);  // 3 bytes each: past 65535
  const std::string bytes = format_npy_header(Dtype::float16, extents);
  EXPECT_EQ(bytes[6], 2);
  EXPECT_EQ(bytes.size() % 64, 0U);
  EXPECT_EQ(parse(bytes).extents, extents);
}

TEST(NpyHeader, EveryDtypeAndVersionIsRead) {
  for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::float16, Dtype::int64, Dtype::int32}) {
    for (const int version : {1, 2, 3}) {
      const std::string dictionary =
          "{'descr': '" + std::string(name(dtype)) + "', 'fortran_order': False, 'shape': (4, 0, 7), }\n";
      const std::string file = npy_bytes(dictionary, "payload", version);
      const NpyHeader header = parse(file);
      EXPECT_EQ(header.dtype, dtype);
      EXPECT_EQ(header.extents, (std::vector<Index>{4, 0, 7}));
      EXPECT_EQ(header.payload_offset, static_cast<Index>(file.size() - 7));
    }
  }
}

TEST(NpyHeader, OrderOfKeysSpaceQuotesAndCommasAreFree) {
  for (const char* dictionary :
       {"{'shape': (2, 3), 'fortran_order': False, 'descr': '<f4'}",
        "{'descr':'<f4','fortran_order':False,'shape':(2,3)}",
        "  { 'descr' : '<f4' , 'fortran_order' : False , 'shape' : ( 2 , 3 , ) , } \t\r\n\n",
        "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2, 3)}"}) {
    const NpyHeader header = parse(npy_bytes(dictionary));
    EXPECT_EQ(header.dtype, Dtype::float32) << dictionary;
    EXPECT_EQ(header.extents, (std::vector<Index>{2, 3})) << dictionary;
  }
}

TEST(NpyHeader, WhatIsNotSupportedNamesTheRemedy) {
  const auto with = [](const std::string& descr, const std::string& order = "False",
                       const std::string& shape = "(2, 3)") {
    return "{'descr': " + descr + ", 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  };
  for (const char* shape : {"(2, 3)", "(2, 3, 4)", "(1, 2, 3, 4)"})
    expect_dictionary_refused(
        with("'<f4'", "True", shape),
        "q.npy: Fortran order is not supported: save it with np.ascontiguousarray(array)");
  expect_dictionary_refused(with("'>f4'"), "newbyteorder");
  expect_dictionary_refused(with("'|O'"), "Python objects");
  expect_dictionary_refused(with("[('x', '<f4'), ('y', '<f8')]"), "structured dtype");
  expect_dictionary_refused(with("'<c16'"), "the dtype '<c16' is not supported");
  for (const char* whole : {"'|b1'", "'|i1'", "'|u1'", "'<i2'", "'<u2'", "'<u4'", "'<u8'"})
    expect_dictionary_refused(with(whole),
                              "array.astype('float32'), or with 'int64' where integers are wanted");
  expect_dictionary_refused(with("'<f4 with\na second line and more'"), "'<f4 with?a second line a...'");
  expect_dictionary_refused(with(std::string("'<f4\0'", 6)), "the dtype '<f4?' is not supported");
}

TEST(NpyHeader, ExtentsOutOfRange) {
  const auto with = [](const std::string& shape) {
    return "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }";
  };
  expect_dictionary_refused(with("(2, -3)"), "an extent is negative (-3)");
  expect_dictionary_refused(with("(9223372036854775808, 1)"), "an extent is out of range");
  expect_dictionary_refused(with("(-99999999999999999999,)"), "an extent is out of range");
  expect_dictionary_refused(with("(4294967296, 4294967296)"), "more than 2^63 bytes");
  expect_dictionary_refused(with("(0, 4294967296, 4294967296)"), "more than 2^63 bytes");
  expect_dictionary_refused(with("(9223372036854775807,)"), "more than 2^63 bytes");
  expect_dictionary_refused(with("(1152921504606846976, 1)"), "more than 2^63 bytes");  // 2^60 doubles: 2^63
  EXPECT_EQ(parse(npy_bytes(with("(576460752303423488, 1)"))).elements(), Index{1} << 59);
}

TEST(NpyHeader, MalformedDictionaries) {
  for (const char* dictionary : {"",
                                 "{",
                                 "}",
                                 "{}",
                                 "[]",
                                 "{,}",
                                 "{'descr'",
                                 "{'descr':",
                                 "{'descr': '<f4",
                                 "{'descr': '<f4'",
                                 "{'descr': '<f4', 'fortran_order': False}",
                                 "{'descr': '<f4', 'shape': (1,)}",
                                 "{'fortran_order': False, 'shape': (1,)}",
                                 "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (3)}",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': 3}",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (3 4)}",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (,)}",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (3,,)}",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (3.5,)}",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (1e3,)}",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (+3,)}",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (3,)",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (3,",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (3,),} x",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (3,),,}",
                                 "{'descr': '<f4' 'fortran_order': False, 'shape': (3,)}",
                                 "{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (3,)}",
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), 'more': 1}",
                                 "{descr: '<f4', 'fortran_order': False, 'shape': (3,)}"})
    expect_dictionary_refused(dictionary, "malformed header: ");
}

TEST(NpyHeader, TheFixedPart) {
  expect_refused("", "truncated in the header");
  expect_refused("\x93NUM", "truncated in the header");
  expect_refused(std::string("\x93NUMPY\x01\x00", 8), "truncated in the header");
  expect_refused(std::string("\x93NUMPY\x02\x00\x10\x00", 10), "truncated in the header");
  expect_refused("hello, this is no array", "not a .npy file");
  expect_refused(std::string("PK\x03\x04 and so on"), "this is an .npz archive");
  expect_refused(std::string("\x93NUMPY\x04\x00\x10\x00\x00\x00", 12), "unknown version 4.0");
  expect_refused(std::string("\x93NUMPY\x00\x00\x10\x00", 10), "unknown version 0.0");
  expect_refused(std::string("\x93NUMPY\x01\x01\x10\x00", 10), "unknown version 1.1");
  expect_refused(std::string("\x93NUMPY\xff\xff\x10\x00", 10), "unknown version 255.255");
  expect_refused(std::string("\x93NUMPY\x02\x00\xff\xff\xff\xff{}", 14),
                 "claims to be 4294967295 bytes long");
  expect_refused(std::string("\x93NUMPY\x02\x00\x00\x00\x10\x00{}", 14), "claims to be 1048576 bytes long");
  expect_refused(std::string("\x93NUMPY\x01\x00\xff\xff{}", 12), "truncated in the header");
}

TEST(NpyHeader, EveryPrefixOfAFileIsRefused) {
  const std::string file = format_npy_header(Dtype::float32, {2, 3});
  for (std::size_t length = 0; length < file.size(); ++length)
    expect_refused(file.substr(0, length), "truncated in the header");
}

TEST(NpySize, IsTestedToTheByte) {
  const NpyHeader header{Dtype::float16, {3, 5}, 128};
  EXPECT_EQ(header.elements(), 15);
  EXPECT_EQ(header.payload_bytes(), 30);
  check_npy_size(header, 158, "q.npy");
  expect_input_error([&] { check_npy_size(header, 157, "q.npy"); },
                     "q.npy: truncated: 1 of its 158 bytes are missing");
  expect_input_error([&] { check_npy_size(header, 0, "q.npy"); }, "158 of its 158 bytes are missing");
  expect_input_error([&] { check_npy_size(header, 160, "q.npy"); }, "q.npy: 2 bytes follow the array");
  const NpyHeader large{
      Dtype::float64, {Index{1} << 30, 1 << 20}, 128};  // counts past 2^31, and bytes past 2^52
  check_npy_size(large, (Index{1} << 53) + 128, "q.npy");
  expect_input_error([&] { check_npy_size(large, most, "q.npy"); }, "bytes follow");
}

TEST(NpyShape, TwoThreeAndFourDimensions) {
  const auto shape = [](std::vector<Index> extents) {
    return array_shape(NpyHeader{Dtype::float32, std::move(extents), 128}, "q.npy");
  };
  EXPECT_EQ(shape({5, 6}), (Shape{1, 1, 5, 6}));
  EXPECT_EQ(shape({4, 5, 6}), (Shape{1, 4, 5, 6}));
  EXPECT_EQ(shape({3, 4, 5, 6}), (Shape{3, 4, 5, 6}));
  expect_input_error([&] { (void)shape({}); }, "the shape () is not [S, D], [H, S, D] or [B, H, S, D]");
  expect_input_error([&] { (void)shape({5}); }, "the shape (5,) is not");
  expect_input_error([&] { (void)shape({1, 2, 3, 4, 5}); }, "the shape (1, 2, 3, 4, 5) is not");
  expect_input_error([&] { (void)shape({5, 0}); }, "q.npy: the shape (5, 0) has an extent of 0");
}

TEST(NpyShape, AndBack) {
  EXPECT_EQ(array_extents({1, 1, 5, 6}, 2), (std::vector<Index>{5, 6}));
  EXPECT_EQ(array_extents({1, 4, 5, 6}, 3), (std::vector<Index>{4, 5, 6}));
  EXPECT_EQ(array_extents({1, 4, 5, 6}, 4), (std::vector<Index>{1, 4, 5, 6}));
  EXPECT_EQ(row_extents({1, 1, 5, 6}, 2), (std::vector<Index>{5}));
  EXPECT_EQ(row_extents({3, 4, 5, 6}, 4), (std::vector<Index>{3, 4, 5}));
  EXPECT_THROW((void)array_extents({2, 1, 5, 6}, 3), Error);
  EXPECT_THROW((void)array_extents({1, 2, 5, 6}, 2), Error);
  EXPECT_THROW((void)array_extents({1, 1, 5, 6}, 1), Error);
  EXPECT_THROW((void)array_extents({1, 1, 5, 6}, 5), Error);
}

}  // namespace
}  // namespace ring_attention
