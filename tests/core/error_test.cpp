#include "ring_attention/core/error.hpp"

#include <gtest/gtest.h>

#include <string>

#include "ring_attention/core/text.hpp"
#include "support/thrown_message.hpp"

namespace ring_attention {
namespace {

TEST(Require, ThrowsWithThePlaceOfTheCaller) {
  int line = 0;
  const std::string message = test::thrown_message([&] {
    line = __LINE__ + 1;
    require(1 + 1 == 3, "arithmetic holds");
  });
  const std::string number = std::to_string(line);
  EXPECT_EQ(message, "arithmetic holds [error_test.cpp:" + number + "]");
}

TEST(Require, IsSilentWhenTheConditionHolds) { EXPECT_NO_THROW(require(true, "never said")); }

TEST(Located, NamesTheFileWithoutItsFolders) {
  const std::string text = located("what", std::source_location::current());
  EXPECT_EQ(text.rfind("what [error_test.cpp:", 0), 0U) << text;
}

// Two regimes: a handler of one does not catch the other.
TEST(InputError, IsNoError) {
  EXPECT_THROW(throw InputError("q.npy: bad"), InputError);
  try {
    throw InputError("q.npy", "it is bad", "fix it");
  } catch (const Error&) {
    FAIL() << "caught as an Error";
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "q.npy: it is bad: fix it");
  }
}

TEST(Format, IsPrintfOfAnyLength) {
  EXPECT_EQ(format("%d of %s", 3, "four"), "3 of four");
  EXPECT_EQ(format("%s", ""), "");
  EXPECT_EQ(format("%s!", std::string(5000, 'x').c_str()), std::string(5000, 'x') + "!");
}

}  // namespace
}  // namespace ring_attention
