#include "ring_attention/core/compare.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <string>

#include "ring_attention/core/tensor.hpp"

namespace ring_attention {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr Tolerance anything{1e300, 1e300};
constexpr CompareOptions lse{.allow_negative_infinity = true};
constexpr CompareOptions zero{.expect_zero = true};

template <class T = double>
Tensor<T> row(std::initializer_list<double> values) {
  Tensor<T> array(Shape{1, 1, 1, static_cast<Index>(values.size())});
  std::transform(values.begin(), values.end(), array.data(), [](double x) { return static_cast<T>(x); });
  return array;
}

bool agree(std::initializer_list<double> got, std::initializer_list<double> want, Tolerance tolerance,
           CompareOptions options = {}) {
  return compare(row(got), row(want), tolerance, options).ok;
}

std::string reason(std::initializer_list<double> got, std::initializer_list<double> want, Tolerance tolerance,
                   CompareOptions options = {}) {
  const Comparison result = compare(row(got), row(want), tolerance, options);
  EXPECT_FALSE(result.ok);
  return result.reason;
}

TEST(Compare, AbsoluteAndRelativeToWant) {
  EXPECT_TRUE(agree({1, 2, 3}, {1, 2, 3}, {}));
  EXPECT_FALSE(agree({1, 2, std::nextafter(3.0, 4.0)}, {1, 2, 3}, {}));
  EXPECT_TRUE(agree({1.25}, {1}, {.absolute = 0.25}));
  EXPECT_FALSE(agree({1.25}, {1}, {.absolute = 0.125}));
  EXPECT_TRUE(agree({125}, {100}, {.relative = 0.25}));
  EXPECT_FALSE(agree({100}, {75}, {.relative = 0.25}));  // a quarter of got, more of want
  EXPECT_TRUE(agree({-1.5, 0.5}, {-1, 1}, {.absolute = 0.25, .relative = 0.25}));
  EXPECT_EQ(reason({1, 5}, {1, 2}, {.absolute = 1}), "beyond the tolerance");
}

// Each of these passes `if (error > tolerance) fail()` or `worst = std::max(worst, error)`.
TEST(Compare, NaNFailsWhereverItIs) {
  EXPECT_EQ(reason({1, nan}, {1, 2}, anything), "got is not finite");
  EXPECT_EQ(reason({1, 2}, {1, nan}, anything), "want is not finite");
  EXPECT_EQ(reason({1, nan}, {1, nan}, anything), "want is not finite");
  EXPECT_EQ(reason({nan, 2}, {1, 2}, anything, lse), "got is not finite");
  EXPECT_EQ(reason({nan}, {0}, anything, zero), "got is not finite");
  EXPECT_EQ(reason({nan}, {-infinity}, anything, lse), "want is not finite");
  EXPECT_EQ(reason({1}, {1}, {nan, 0}), "beyond the tolerance");
  EXPECT_EQ(reason({1}, {1}, {0, nan}), "beyond the tolerance");
  EXPECT_EQ(reason({1}, {1}, {-1, 0}), "beyond the tolerance");
}

TEST(Compare, InfinityFailsWhereverItIs) {
  EXPECT_EQ(reason({1, infinity}, {1, 2}, anything), "got is not finite");
  EXPECT_EQ(reason({1, 2}, {1, infinity}, anything), "want is not finite");
  EXPECT_EQ(reason({1, infinity}, {1, infinity}, anything), "want is not finite");
  EXPECT_EQ(reason({1, -infinity}, {1, -infinity}, anything), "want is not finite");
  EXPECT_EQ(reason({infinity}, {0}, anything, zero), "got is not finite");
}

TEST(Compare, EqualNegativeInfinityOnlyWhereAsked) {
  EXPECT_TRUE(agree({-infinity, 2}, {-infinity, 2}, {}, lse));
  EXPECT_TRUE(agree({-infinity, -infinity}, {-infinity, -infinity}, {}, lse));
  EXPECT_EQ(reason({-infinity, 2}, {1, 2}, anything, lse), "got is not finite");
  EXPECT_EQ(reason({-1e30, 2}, {-infinity, 2}, anything, lse), "want is not finite");
  EXPECT_EQ(reason({infinity, 2}, {infinity, 2}, anything, lse), "want is not finite");
  EXPECT_EQ(reason({infinity, 2}, {-infinity, 2}, anything, lse), "want is not finite");
  EXPECT_EQ(reason({-infinity, 3}, {-infinity, 2}, {}, lse), "beyond the tolerance");
}

TEST(Compare, AnAllZeroReferenceIsRefused) {
  EXPECT_EQ(reason({0, 0}, {0, 0}, anything), "the reference is all zero: say expect_zero if that is meant");
  EXPECT_EQ(reason({0, 0}, {0, -0.0}, anything),
            "the reference is all zero: say expect_zero if that is meant");
  EXPECT_EQ(reason({-infinity, 0}, {-infinity, 0}, anything, lse),
            "the reference is all zero: say expect_zero if that is meant");
  EXPECT_TRUE(agree({0, 1e-200}, {0, 1e-200}, {}));  // small is not zero, though its square is
}

TEST(Compare, AnExpectedZeroIsCheckedAbsolutely) {
  EXPECT_TRUE(agree({0, -0.0}, {0, 0}, {}, zero));
  EXPECT_TRUE(agree({0, 1e-9}, {0, 0}, {.absolute = 1e-9}, zero));
  EXPECT_EQ(reason({0, 1e-9}, {0, 0}, {}, zero), "beyond the tolerance");
  EXPECT_EQ(reason({0, 1e-9}, {0, 0}, {.absolute = 1e-10, .relative = 1e9}, zero), "beyond the tolerance");
  EXPECT_EQ(reason({0, 1}, {0, 1}, anything, zero), "zero was expected, but the reference is not zero");
  EXPECT_EQ(reason({0, 1e-200}, {0, 1e-200}, anything, zero),
            "zero was expected, but the reference is not zero");
}

TEST(Compare, ShapesHaveToBeTheSame) {
  const Tensor<float> a(Shape{1, 2, 3, 4}, 1.0F);
  const Tensor<float> b(Shape{1, 3, 2, 4}, 1.0F);
  const Comparison result = compare(a, b, anything);
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.reason, "shapes differ: got [1, 2, 3, 4], want [1, 3, 2, 4]");
  EXPECT_FALSE(compare(a, Tensor<float>(Shape{1, 2, 0, 4}), anything).ok);
  EXPECT_FALSE(compare(Tensor<float>(Shape{1, 2, 0, 4}), Tensor<float>(Shape{1, 1, 0, 4}), anything).ok);
}

TEST(Compare, EmptyAgreesWithEmpty) {
  const Tensor<float> a(Shape{1, 2, 0, 4});
  EXPECT_TRUE(compare(a, Tensor<double>(Shape{1, 2, 0, 4}), {}).ok);
  EXPECT_TRUE(compare(a, a, {}, zero).ok);
}

TEST(Compare, FloatAgainstDouble) {
  const double third = 1.0 / 3;
  EXPECT_FALSE(compare(row<float>({third}), row({third}), {}).ok);
  EXPECT_TRUE(compare(row<float>({third}), row({third}), {.absolute = 1e-8}).ok);
}

TEST(Compare, FiguresAreThoseOfTheFormulas) {
  const Comparison result =
      compare(row({3, -infinity, 4, -1}), row({3, -infinity, 2, 0}), {.absolute = 2}, lse);
  EXPECT_TRUE(result.ok);
  EXPECT_EQ(result.reason, "");
  EXPECT_EQ(result.max_error, 2);
  EXPECT_EQ(result.mean_error, 1);
  EXPECT_DOUBLE_EQ(result.norm_got, std::sqrt(26.0));
  EXPECT_DOUBLE_EQ(result.norm_want, std::sqrt(13.0));
  EXPECT_DOUBLE_EQ(result.relative_error, std::sqrt(5.0 / 13));
}

TEST(Compare, TheWorstIsFarthestBeyondItsOwnBound) {
  // The first has the larger error, the second the error farther beyond its bound.
  const Comparison result = compare(row({1010, 3}), row({1000, 1}), {.relative = 0.1});
  EXPECT_FALSE(result.ok);
  EXPECT_EQ(result.worst, 1);
  EXPECT_EQ(result.got, 3);
  EXPECT_EQ(result.want, 1);
  EXPECT_EQ(result.max_error, 10);
}

TEST(Compare, TheFirstThatIsNotFiniteIsNamed) {
  const Comparison result = compare(row({1, 7, nan, infinity}), row({1, 2, 3, 4}), {});
  EXPECT_EQ(result.worst, 2);
  EXPECT_TRUE(std::isnan(result.got));
  EXPECT_EQ(result.want, 3);
}

TEST(Describe, SaysWhereAndWhy) {
  Tensor<double> want(Shape{2, 3, 4, 5}, 1.0);
  Tensor<double> got = want.clone();
  got.view()(1, 2, 3, 4) = 1.5;
  got.view()(1, 0, 2, 1) = 3.25;
  const std::string line = describe(compare(got, want, {.absolute = 0.1}));
  EXPECT_EQ(line.rfind("FAILED: beyond the tolerance; max 2.25, ", 0), 0U) << line;
  EXPECT_NE(line.find("worst at [1, 0, 2, 1]: got 3.25, want 1"), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos);

  const std::string good = describe(compare(got, want, {.absolute = 10}));
  EXPECT_EQ(good.rfind("max 2.25, mean 0.0229, relative ", 0), 0U) << good;
  EXPECT_EQ(good.find("worst"), std::string::npos);

  got.view()(0, 1, 0, 0) = nan;
  const std::string bad = describe(compare(got, want, anything));
  EXPECT_EQ(bad, "FAILED: got is not finite; the first at [0, 1, 0, 0]: got nan, want 1");

  const std::string shapes = describe(compare(got, Tensor<double>(Shape{1, 1, 1, 1}), {}));
  EXPECT_EQ(shapes.rfind("FAILED: shapes differ: ", 0), 0U) << shapes;
  EXPECT_EQ(shapes.find("worst"), std::string::npos) << shapes;
}

TEST(ElementName, IsTheIndexInEveryDimension) {
  EXPECT_EQ(element_name({2, 3, 4, 5}, 0), "[0, 0, 0, 0]");
  EXPECT_EQ(element_name({2, 3, 4, 5}, 119), "[1, 2, 3, 4]");
  EXPECT_EQ(element_name({2, 3, 4, 1}, 13), "[1, 0, 1, 0]");
  EXPECT_EQ(element_name({1, 1, 0, 1}, 0), "[]");
}

TEST(CountNonFinite, CountsAndFindsTheFirst) {
  const Tensor<float> array = row<float>({1, infinity, 2, nan, -infinity});
  const NonFinite found = count_non_finite<float>(array.view());
  EXPECT_EQ(found.count, 3);
  EXPECT_EQ(found.first, 1);
  const Tensor<double> sound = row({0, 1e308});
  EXPECT_EQ(count_non_finite<double>(sound.view()).count, 0);
  EXPECT_FALSE(count_non_finite<double>(sound.view()).first.has_value());
}

TEST(BitwiseEqual, TellsWhatEqualityDoesNot) {
  EXPECT_TRUE(bitwise_equal(row({1, nan}), row({1, nan})));
  EXPECT_FALSE(bitwise_equal(row({0.0}), row({-0.0})));
  EXPECT_FALSE(bitwise_equal(row({1.0}), row({std::nextafter(1.0, 2.0)})));
  EXPECT_FALSE(bitwise_equal(Tensor<float>(Shape{1, 2, 3, 1}), Tensor<float>(Shape{1, 3, 2, 1})));
  EXPECT_TRUE(bitwise_equal(Tensor<float>(Shape{1, 2, 0, 1}), Tensor<float>(Shape{1, 2, 0, 1})));
}

TEST(Compare, NormsOfTinyAndHugeNumbers) {
  const Comparison tiny = compare(row({-1e-200}), row({1e-200}), anything);
  EXPECT_NEAR(tiny.relative_error, 2, 1e-15);
  EXPECT_NEAR(tiny.norm_error, 2e-200, 1e-215);
  EXPECT_NEAR(compare(row({3e200, 4e200}), row({3e200, 4e200}), {}).norm_want, 5e200, 1e185);
  EXPECT_EQ(norm(row({}).view().elements()), 0);
  EXPECT_NEAR(norm(row({3e-320, 4e-320}).view().elements()), 5e-320, 1e-322);
}

TEST(JudgedByNorm, FailsBeyondItsBoundAndDecidesNothingBeyondATenth) {
  const Comparison one = compare(row({3.0, 4.1}), row({3.0, 4.0}), anything);  // off by 0.1, of 5
  EXPECT_TRUE(judged_by_norm(one, 0.2, 0).ok);
  const Comparison wrong = judged_by_norm(one, 0.09, 0);
  EXPECT_FALSE(wrong.ok);
  EXPECT_TRUE(wrong.decides);
  const Comparison unknown = judged_by_norm(one, 0.51, 0);
  EXPECT_FALSE(unknown.ok);
  EXPECT_FALSE(unknown.decides);
  EXPECT_EQ(unknown.reason, "roundings may reach 0.51, of a norm of 5: this says nothing");
  EXPECT_TRUE(judged_by_norm(one, 0.51, 6).ok) << "the terms are larger than their sum";
  EXPECT_FALSE(judged_by_norm(one, nan, 6).ok);
  const Comparison noise = compare(row({3.0, 4.8}), row({3.0, 4.0}), anything);  // off by 0.8
  EXPECT_TRUE(judged_by_norm(noise, 1, 100).ok);
  EXPECT_FALSE(judged_by_norm(noise, 1, 100, -1, true).decides)
      << "what cancellation leaves is mostly roundings";
  EXPECT_TRUE(judged_by_norm(noise, 1000, 1e5, -1, true).ok) << "cancellation leaves nothing";
  EXPECT_TRUE(judged_by_norm(one, 0.01, 0, 0.11).ok) << "an error that any array may have";
}

// Two rows, of norms 5 and 1.
TEST(JudgedByRows, EachRowHasItsOwnBound) {
  const auto shape = [](std::initializer_list<double> numbers) {
    Tensor<double> rows({1, 1, 2, static_cast<Index>(numbers.size()) / 2});
    std::ranges::copy(numbers, rows.data());
    return rows;
  };
  const Precision precision{.epsilon = 1e-6};
  const auto judged = [&](const Tensor<double>& got, double rounding) {
    RowErrors errors({1, 1, 2, 1});
    errors.roundings.data()[1] = rounding;
    const Tensor<double> want = shape({3, 4, 1, 0});
    return judged_by_rows(compare(got, want, anything), got, want, errors, precision, 2);
  };
  EXPECT_TRUE(judged(shape({3, 4.0004, 1, 0}), 0).ok);
  EXPECT_EQ(judged(shape({3, 4, 1.0004, 0}), 0).reason,
            "the norm of the error of row 1 is 0.0004, its bound 0.0002");
  EXPECT_TRUE(judged(shape({3, 4, 1.0004, 0}), 100).ok);
  EXPECT_FALSE(judged(shape({3, 4.004, 1, 0}), 100).ok) << "of the other row";
  EXPECT_FALSE(judged(shape({3, 4, 1.0004, 0}), 2e5).decides);
}

TEST(GradientNormBound, DenormalNumbersHaveAFloor) {
  const Comparison tiny = compare(row({7e-45}), row({1e-41}), anything);
  const Precision precision = Precision::of<float>();
  EXPECT_LT(gradient_norm_bound(tiny, precision, 0, {}, 60, 1), 1e-45);
  EXPECT_GT(gradient_norm_bound(tiny, precision, 0, {.steps = 2}, 60, 1), 1e-44);
}

// More keys, larger scores and larger values allow more; float allows more than double.
TEST(AttentionTolerance, GrowsWithWhatItDependsOn) {
  const Tolerance base = attention_tolerance<float>(64, 10, 1);
  EXPECT_GT(base.relative, 1e-7);
  EXPECT_LT(base.relative, 1e-4);
  EXPECT_GT(attention_tolerance<float>(6400, 10, 1).relative, base.relative);
  EXPECT_GT(attention_tolerance<float>(64, 100, 1).relative, base.relative);
  EXPECT_GT(attention_tolerance<float>(64, 10, 8).absolute, base.absolute);
  EXPECT_LT(attention_tolerance<double>(64, 10, 1).relative, 1e-12);
  EXPECT_LT(attention_tolerance<float>(64, 10, 1e-7).absolute, 1e-11);
}

}  // namespace
}  // namespace ring_attention
