#include "ring_attention/core/eigen.hpp"

#include <gtest/gtest.h>

#include "ring_attention/core/allocation.hpp"
#include "ring_attention/core/error.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention {
namespace {

Tensor<double> counted(const Shape& shape) {
  Tensor<double> tensor(shape);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<double>(i);
  return tensor;
}

TEST(EigenBridge, AHeadIsAMatrixOfTokensByDim) {
  Tensor<double> tensor = counted({2, 3, 4, 5});
  const auto head = matrix(tensor.view(), 1, 2);
  EXPECT_EQ(head.rows(), 4);
  EXPECT_EQ(head.cols(), 5);
  for (Index s = 0; s < 4; ++s)
    for (Index d = 0; d < 5; ++d) EXPECT_EQ(head(s, d), tensor.view()(1, 2, s, d));
}

TEST(EigenBridge, IsNoCopy) {
  Tensor<double> tensor = counted({2, 3, 4, 5});
  const Index allocations = allocation::count();
  auto head = matrix(tensor.view(), 0, 1);
  head(2, 3) = -1;
  EXPECT_EQ(tensor.view()(0, 1, 2, 3), -1);
  EXPECT_EQ(head.data(), tensor.view().head(0, 1));
  head.setZero();
  EXPECT_EQ(tensor.view()(0, 1, 3, 4), 0);
  EXPECT_EQ(tensor.view()(0, 0, 3, 4), 19);  // the other heads
  EXPECT_EQ(tensor.view()(0, 2, 0, 0), 40);
  EXPECT_EQ(allocation::count(), allocations);
}

TEST(EigenBridge, ABlockIsSomeOfTheRows) {
  Tensor<double> tensor = counted({1, 2, 6, 3});
  auto block = matrix(tensor.view(), 0, 1, 2, 3);
  EXPECT_EQ(block.rows(), 3);
  EXPECT_EQ(block(0, 0), tensor.view()(0, 1, 2, 0));
  EXPECT_EQ(block(2, 2), tensor.view()(0, 1, 4, 2));
  block(1, 1) = -5;
  EXPECT_EQ(tensor.view()(0, 1, 3, 1), -5);
  EXPECT_EQ(matrix(tensor.view(), 0, 1, 6, 0).rows(), 0);
}

TEST(EigenBridge, AConstantViewIsAConstantMatrix) {
  const Tensor<double> tensor = counted({1, 1, 2, 3});
  const auto head = matrix(tensor.view(), 0, 0);
  static_assert(std::is_same_v<decltype(head.data()), const double*>);
  const Matrix<double> product = head * head.transpose();
  EXPECT_EQ(product(0, 1), 0 * 3 + 1 * 4 + 2 * 5);
}

TEST(EigenBridge, AHeadWithoutTokensIsEmpty) {
  const Tensor<float> tensor(Shape{1, 2, 0, 3});
  EXPECT_EQ(matrix(tensor.view(), 0, 1).rows(), 0);
  EXPECT_EQ(matrix(tensor.view(), 0, 1).cols(), 3);
}

TEST(EigenBridge, ProductOfMatricesAndTransposes) {
  const Matrix<double> a{{1, 2, 3}, {4, 5, 6}}, b{{1, 0}, {2, 1}, {-1, 3}},
      want{{5, 23}, {17, 47}};  // 1 + 2 a b
  const Matrix<double> a_transposed = a.transpose(), b_transposed = b.transpose();
  Matrix<double> c;
  const auto expect_product = [&](const Factor<double>& left, const Factor<double>& right) {
    c.setOnes(2, 2);
    add_product<double>(c, 2, left, right);
    EXPECT_EQ(c, want);
  };
  expect_product(a, b);
  expect_product(a_transposed.transpose(), b);
  expect_product(a, b_transposed.transpose());
  expect_product(a_transposed.transpose(), b_transposed.transpose());
  EXPECT_THROW(add_product<double>(c, 1, a, a), Error);
}

}  // namespace
}  // namespace ring_attention
