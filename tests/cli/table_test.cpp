// What people read: columns, sizes, times and errors.
#include "cli/table.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "ring_attention/core/error.hpp"

namespace ring_attention::test {
namespace {

TEST(Table, AlignsNumbersRightAndWordsLeft) {
  Table table({"rank", "error", "verdict"});
  table.row({"0", "1.2e-07", "ok"});
  table.row({"10", "-inf", "FAIL"});
  table.row({"-", "nan", "ok"});
  EXPECT_EQ(table.text(),
            "  rank    error  verdict\n"
            "     0  1.2e-07  ok\n"
            "    10     -inf  FAIL\n"
            "     -      nan  ok\n");
}

TEST(Table, WithoutRowsIsItsHeading) { EXPECT_EQ(Table({"a", "b"}).text(), "  a  b\n"); }

TEST(Table, WantsACellForEachColumn) {
  Table table({"a", "b"});
  EXPECT_THROW(table.row({"1"}), Error);
  EXPECT_THROW(table.row({"1", "2", "3"}), Error);
}

TEST(Human, Bytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.0 KiB");
  EXPECT_EQ(human_bytes(1536), "1.5 KiB");
  EXPECT_EQ(human_bytes((1 << 20) - 1), "1.0 MiB") << "not 1024.0 KiB";
  EXPECT_EQ(human_bytes(Index{3} << 30), "3.0 GiB");
  EXPECT_EQ(human_bytes(std::numeric_limits<Index>::max()), "8192.0 PiB");
}

TEST(Human, Seconds) {
  EXPECT_EQ(human_seconds(0), "0 us");
  EXPECT_EQ(human_seconds(12.34e-6), "12.3 us");
  EXPECT_EQ(human_seconds(4.56e-3), "4.56 ms");
  EXPECT_EQ(human_seconds(7.891), "7.89 s");
  EXPECT_EQ(human_seconds(123.4), "123 s");
  EXPECT_EQ(human_seconds(12345.6), "12346 s");
  EXPECT_EQ(human_seconds(0.9999e-3), "1 ms") << "not 1e+03 us";
  EXPECT_EQ(human_seconds(0.9999), "1 s") << "not 1e+03 ms";
  EXPECT_EQ(human_seconds(999.9), "1000 s") << "not 1e+03 s";
}

TEST(Human, Errors) {
  EXPECT_EQ(human_error(0), "0.0e+00");
  EXPECT_EQ(human_error(1.23e-7), "1.2e-07");
}

}  // namespace
}  // namespace ring_attention::test
