// What the flags of `ring-attention run` say together.
#include "program/run/options.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "support/input_error.hpp"

namespace ring_attention::test {
namespace {

RunOptions of_files() {
  RunOptions options;
  options.q = "q.npy";
  options.k = "k.npy";
  options.v = "v.npy";
  options.out = "results";
  return options;
}

RunOptions of_random() {
  RunOptions options;
  options.random = {1, 4, 64, 16};
  return options;
}

template <class Change>
std::string complaint(RunOptions options, Change change) {
  change(options);
  return input_error([&] { validate(options); });
}

TEST(RunOptions, GoodOnesPass) {
  EXPECT_NO_THROW(validate(of_files()));
  EXPECT_NO_THROW(validate(of_random()));
  RunOptions options = of_random();
  options.causal = true;
  options.q_offset = -3;
  options.kv_heads = 2;
  options.window = {-1, 0};
  options.backward = true;
  EXPECT_NO_THROW(validate(options));
  EXPECT_TRUE(options.wants_gradients());
}

TEST(RunOptions, SomethingToCompute) {
  EXPECT_EQ(complaint({}, [](RunOptions&) {}),
            "nothing to compute: give --q, --k and --v, or --random B,H,S,D: see ring-attention run --help");
  for (std::string RunOptions::* file : {&RunOptions::q, &RunOptions::k, &RunOptions::v})
    EXPECT_EQ(complaint(of_files(), [=](RunOptions& options) { (options.*file).clear(); }),
              "--q, --k and --v belong together: give all three");
}

TEST(RunOptions, SomewhereToPutIt) {
  EXPECT_EQ(complaint(of_files(), [](RunOptions& options) { options.out.clear(); }),
            "the result would go nowhere: give --out DIR, or --check");
  RunOptions checked = of_files();
  checked.out.clear();
  checked.check = true;
  EXPECT_NO_THROW(validate(checked));
}

TEST(RunOptions, RandomShapesThatCanBe) {
  EXPECT_EQ(complaint(of_random(), [](RunOptions& options) { options.random[2] = 0; }),
            "--random: B, H, S and D are at least 1");
  EXPECT_EQ(complaint(of_random(), [](RunOptions& options) { options.kv_heads = 3; }),
            "--kv-heads 3 must divide the H of --random, 4");
  const auto with_shape = [](const std::vector<Index>& shape) {
    return [=](RunOptions& options) { options.random = shape; };
  };
  const std::string too_many = "--random asks for more than 2^48 elements: give smaller numbers";
  const Index large = Index{1} << 32U;
  EXPECT_EQ(complaint(of_random(), with_shape({large, large, 1, 1})), too_many) << "2^64 is 0 in 64 bits";
  EXPECT_EQ(complaint(of_random(), with_shape({1, 1, large, large / 2})), too_many);
  EXPECT_EQ(complaint(of_random(), with_shape({1, 1, 1, (Index{1} << 48U) + 1})), too_many);
  RunOptions most = of_random();
  most.random = {1 << 12, 1 << 12, 1 << 12, 1 << 12};
  EXPECT_NO_THROW(validate(most));
}

TEST(RunOptions, PartitionsThatCanBe) {
  const auto partition = [](const char* word, std::optional<Index> ulysses) {
    return [=](RunOptions& options) {
      options.parallel = word;
      options.ulysses = ulysses;
    };
  };
  EXPECT_EQ(complaint(of_random(), partition("hybrid", {})),
            "--parallel hybrid needs --ulysses N, the number of ranks that share the heads");
  for (const char* word : {"ring", "ulysses", "all-gather"})
    EXPECT_EQ(complaint(of_random(), partition(word, 2)), "--ulysses goes with --parallel hybrid");
  RunOptions options = of_random();
  partition("all-gather", {})(options);
  EXPECT_NO_THROW(validate(options));
  options.device = "cuda";
  EXPECT_NO_THROW(validate(options));
  partition("hybrid", 2)(options);
  EXPECT_NO_THROW(validate(options));
}

TEST(RunOptions, NumbersThatMeanSomething) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (const double scale : {nan, infinity, -infinity})
    EXPECT_EQ(complaint(of_random(), [=](RunOptions& options) { options.scale = scale; }),
              "--scale must be a finite number");
  for (const double timeout : {0.0, -1.0, nan, infinity})
    EXPECT_EQ(complaint(of_random(), [=](RunOptions& options) { options.timeout = timeout; }),
              "--timeout must be above 0 seconds");
  EXPECT_EQ(complaint(of_random(), [](RunOptions& options) { options.window = {3, -2}; }),
            "--window LEFT,RIGHT: each side is a number of keys, or -1 for all");
  EXPECT_NE(complaint(of_random(), [](RunOptions& options) { options.q_offset = 3; }).find("--causal"),
            std::string::npos);
}

}  // namespace
}  // namespace ring_attention::test
