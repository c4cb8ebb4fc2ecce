// A test program holds the tests of a whole folder, and CTest runs it once for each source file:
// `--source=core/bf16_test.cpp` selects the tests of the file whose path ends so.

#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <string_view>

namespace ring_attention::test {

/// Calls visit(test) for each test of the program.
template <class Visit>
void for_each_test(Visit visit) {
  const testing::UnitTest& program = *testing::UnitTest::GetInstance();
  for (int s = 0; s < program.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *program.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) visit(*suite.GetTestInfo(t));
  }
}

/// Takes `--source=PATH` from the arguments, and adds the tests of all other files to what GoogleTest's filter excludes.
/// To be called after InitGoogleTest. False, with a message, when no test would be run.
inline bool select_source(int argc, char** argv) {
  constexpr std::string_view option = "--source=";
  std::string source;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(option)) source = "/" + std::string(argument.substr(option.size()));
  }
  if (source.empty()) return true;

  std::string excluded;
  bool any = false;
  for_each_test([&](const testing::TestInfo& test) {
    if (std::string_view(test.file()).ends_with(source)) {
      any = true;
    } else {
      excluded += std::string(":") + test.test_suite_name() + "." + test.name();
    }
  });
  if (!any)
    std::fprintf(stderr, "no test of this program stands in a file that ends with %s\n", source.c_str());
  std::string filter = testing::GTEST_FLAG(filter);
  if (!excluded.empty()) filter += (filter.find('-') == std::string::npos ? "-" : "") + excluded;
  testing::GTEST_FLAG(filter) = filter;
  return any;
}

}  // namespace ring_attention::test
