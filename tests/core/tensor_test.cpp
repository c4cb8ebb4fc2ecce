#include "ring_attention/core/tensor.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <type_traits>
#include <utility>

#include "ring_attention/core/allocation.hpp"
#include "ring_attention/core/view.hpp"

namespace ring_attention {
namespace {

static_assert(!std::is_copy_constructible_v<Tensor<float>> && !std::is_copy_assignable_v<Tensor<float>>);
static_assert(std::is_nothrow_move_constructible_v<Tensor<float>>);
static_assert(std::is_nothrow_move_assignable_v<Tensor<float>>);
static_assert(std::is_convertible_v<View<float>, View<const float>>);
static_assert(!std::is_convertible_v<View<const float>, View<float>>);
static_assert(!std::is_convertible_v<View<float>, View<double>>);

TEST(Tensor, StartsAsZeroOrAsAValue) {
  const Tensor<double> zeros(Shape{2, 3, 4, 5});
  const Tensor<double> sevens(Shape{2, 3, 4, 5}, 7.0);
  EXPECT_EQ(zeros.size(), 120);
  EXPECT_EQ(zeros.bytes(), 960U);
  for (Index i = 0; i < zeros.size(); ++i) {
    ASSERT_EQ(zeros.data()[i], 0);
    ASSERT_EQ(sevens.data()[i], 7);
  }
}

TEST(Tensor, IsAlignedTo64Bytes) {
  for (Index n = 1; n < 100; ++n) {
    const Tensor<float> tensor(Shape{1, 1, n, 3});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0U);
  }
}

TEST(Tensor, MovesInsteadOfCopying) {
  Tensor<float> from(Shape{1, 2, 3, 4}, 5.0F);
  const float* data = from.data();
  Tensor<float> to = std::move(from);
  EXPECT_EQ(to.data(), data);
  EXPECT_EQ(to.shape(), (Shape{1, 2, 3, 4}));
  EXPECT_EQ(from.data(), nullptr);  // NOLINT: the state after a move is tested here
  EXPECT_EQ(from.size(), 0);        // NOLINT

  Tensor<float> other(Shape{1, 1, 1, 1}, 6.0F);
  other = std::move(to);
  EXPECT_EQ(other.data(), data);
  EXPECT_EQ(other.shape(), (Shape{1, 2, 3, 4}));

  const Tensor<float> none;
  EXPECT_EQ(none.size(), 0);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(Tensor<float>().clone().size(), 0);
}

TEST(Tensor, ACloneIsAnotherArray) {
  Tensor<float> one(Shape{1, 1, 2, 2}, 1.0F);
  const Tensor<float> two = one.clone();
  one.fill(3.0F);
  EXPECT_EQ(two.data()[3], 1.0F);
  EXPECT_EQ(two.shape(), one.shape());
  EXPECT_NE(two.data(), one.data());
}

TEST(Tensor, IsConvertedElementByElement) {
  Tensor<double> wide(Shape{1, 1, 1, 2});
  wide.data()[0] = 0.1;
  wide.data()[1] = -2;
  const Tensor<float> narrow = converted<float>(wide.view());
  EXPECT_EQ(narrow.data()[0], 0.1F);
  EXPECT_EQ(narrow.data()[1], -2.0F);
  EXPECT_EQ(converted<double>(narrow.view()).data()[0], static_cast<double>(0.1F));
}

TEST(Allocation, CountsBytesAliveAndTheirPeak) {
  const Index current = allocation::current();
  const Index count = allocation::count();
  allocation::reset_peak();
  EXPECT_EQ(allocation::peak(), current);
  {
    const Tensor<float> a(Shape{1, 1, 10, 1});
    const Tensor<double> b(Shape{1, 1, 10, 1});
    EXPECT_EQ(allocation::current(), current + 120);
    {
      const Tensor<double> c = b.clone();
    }
    EXPECT_EQ(allocation::current(), current + 120);
    EXPECT_EQ(allocation::peak(), current + 200);
    allocation::reset_peak();
    EXPECT_EQ(allocation::peak(), current + 120);
  }
  EXPECT_EQ(allocation::current(), current);
  EXPECT_EQ(allocation::peak(), current + 120);
  EXPECT_EQ(allocation::count(), count + 3);
}

TEST(Allocation, ThePeakOfTheProcessIsInBytes) {
  const Tensor<float> touched(Shape{1, 1, Index{16} << 20, 1}, 1.0F);
  EXPECT_GE(allocation::process_peak(), 4 * touched.size());
}

TEST(Allocation, AMoveAllocatesNothing) {
  Tensor<float> a(Shape{1, 1, 10, 1});
  Tensor<float> b(Shape{1, 1, 20, 1});
  const Index current = allocation::current();
  const Index count = allocation::count();
  std::swap(a, b);
  const Tensor<float> c = std::move(a);
  EXPECT_EQ(allocation::count(), count);
  EXPECT_EQ(allocation::current(), current);
}

TEST(Allocation, EveryThreadCountsItsOwn) {
  const Index current = allocation::current();
  const Index count = allocation::count();
  Index there = -1;
  Index peak_there = -1;
  std::thread([&] {
    there = allocation::current();
    const Tensor<double> tensor(Shape{1, 1, 100, 1});
    peak_there = allocation::peak();
  }).join();
  EXPECT_EQ(there, 0);
  EXPECT_EQ(peak_there, 800);
  EXPECT_EQ(allocation::current(), current);
  EXPECT_EQ(allocation::count(), count);
}

TEST(View, FindsElementsInMemoryOrder) {
  Tensor<float> tensor(Shape{2, 3, 4, 5});
  const View<float> view = tensor;
  for (Index i = 0; i < view.size(); ++i) view.data()[i] = static_cast<float>(i);
  EXPECT_EQ(view(1, 2, 3, 4), 119.0F);
  EXPECT_EQ(view(0, 1, 0, 0), 20.0F);
  EXPECT_EQ(view.head(1, 1), tensor.data() + 80);
  EXPECT_EQ(view.row(1, 1, 2).size(), 5U);
  EXPECT_EQ(view.row(1, 1, 2)[3], 93.0F);
  EXPECT_EQ(view.elements().size(), 120U);
  const View<const float> reading = view;
  EXPECT_EQ(&reading(1, 2, 3, 4), &view(1, 2, 3, 4));
}

TEST(Shape, SizesAndSlices) {
  const Shape shape{2, 3, 4, 5};
  EXPECT_EQ(shape.size(), 120);
  EXPECT_EQ(shape.with_seq(7), (Shape{2, 3, 7, 5}));
  EXPECT_EQ(shape.per_row(), (Shape{2, 3, 4, 1}));
  EXPECT_EQ(to_string(shape), "[2, 3, 4, 5]");
  EXPECT_EQ((Shape{8, 64, Index{1} << 27, 128}).size(), Index{1} << 43);  // past 2^31
}

}  // namespace
}  // namespace ring_attention
