// `.npy` files against NumPy itself, where python3 has it. npy_test pins the same bytes without it.

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "io/npy.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/tensor.hpp"
#include "support/temporary_directory.hpp"

namespace ring_attention {
namespace {

class NumPy : public testing::Test {
 protected:
  void SetUp() override {
    const char* named = std::getenv("RING_ATTENTION_PYTHON");
    for (const std::string candidate : {named != nullptr ? named : "python3", "/usr/bin/python3"}) {
      python_ = candidate;
      if (ranges("")) break;
      python_.clear();
    }
    if (python_.empty())
      GTEST_SKIP() << "no python3 with numpy was found (RING_ATTENTION_PYTHON may name one)";
    for (Index i = 0; i < array_.size(); ++i) array_.data()[i] = static_cast<float>(i) / 8;
  }

  /// Runs a script in the directory; true when it succeeded.
  bool ranges(const std::string& script) {
    std::ofstream(directory_ / "script.py") << "import numpy as np\n" << script;
    const std::string command =
        "cd '" + directory_.path() + "' && '" + python_ + "' script.py >/dev/null 2>errors";
    return std::system(command.c_str()) == 0;  // NOLINT: a test starts a program
  }
  void expect_python(const std::string& script) {
    if (ranges(script)) return;
    std::ifstream errors(directory_ / "errors");
    ADD_FAILURE() << std::string(std::istreambuf_iterator<char>(errors), {});
  }

  std::string python_;
  test::TemporaryDirectory directory_;
  Tensor<float> array_{Shape{2, 3, 4, 5}};
};

TEST_F(NumPy, ReadsWhatWeWrite) {
  write_npy<float>(directory_ / "a.npy", array_);
  write_npy<double>(directory_ / "b.npy", converted<double>(array_.view()), {6, 20});
  write_npy<float>(directory_ / "c.npy", array_, {120});
  expect_python(R"(
want = np.arange(120) / 8
a, b, c = (np.load(name) for name in ('a.npy', 'b.npy', 'c.npy'))
assert a.dtype == np.float32 and a.shape == (2, 3, 4, 5) and (a.ravel() == want).all()
assert b.dtype == np.float64 and b.shape == (6, 20) and (b.ravel() == want).all()
assert c.shape == (120,) and (c == want).all()
)");
}

TEST_F(NumPy, WritesWhatWeRead) {
  expect_python(R"(
a = (np.arange(120) / 8).reshape(2, 3, 4, 5)
for dtype in ('<f8', '<f4', '<f2'):
    np.save(dtype[1:], a.astype(dtype))
for version in ((1, 0), (2, 0), (3, 0)):
    with open('version%d.npy' % version[0], 'wb') as file:
        np.lib.format.write_array(file, a.astype('<f4'), version=version)
np.save('head', a[0, 0])
)");
  for (const char* file : {"f8.npy", "f4.npy", "f2.npy", "version1.npy", "version2.npy", "version3.npy"})
    EXPECT_TRUE(bitwise_equal(read_npy<float>(directory_ / file), array_)) << file;
  EXPECT_EQ(read_npy<double>(directory_ / "head.npy").shape(), (Shape{1, 1, 4, 5}));
}

TEST_F(NumPy, WritesTheSameBytes) {
  write_npy<float>(directory_ / "ours.npy", array_);
  expect_python(R"(
a = np.load('ours.npy')
np.save('theirs', a)
assert open('ours.npy', 'rb').read() == open('theirs.npy', 'rb').read()
)");
}

}  // namespace
}  // namespace ring_attention
