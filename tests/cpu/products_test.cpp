// The products of a model with every instruction set of this machine, against sums in double.

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "cpu/every_isa.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention::test {
namespace {

/// C += A B with A or B transposed in memory.
struct Product {
  Index rows, columns, depth;
  bool a_transposed, b_transposed;
};

std::vector<Product> every_case() {
  std::vector<Product> cases;
  for (const Index rows : {0, 1, 7, 16})
    for (const Index columns : {1, 3, 16, 70, 129})
      for (const Index depth : {1, 5, 128, 259})
        for (const bool a : {false, true})
          for (const bool b : {false, true}) cases.push_back({rows, columns, depth, a, b});
  return cases;
}

/// A and B, and C with a row behind it that no product may touch.
template <class T>
struct Matrices {
  explicit Matrices(const Product& of)
      : a({1, 1, of.rows, of.depth}), b({1, 1, of.depth, of.columns}), c({1, 1, of.rows + 1, of.columns}) {
    std::uint64_t stream = 0;
    for (Tensor<T>* array : {&a, &b, &c}) fill_random(array->view(), {.seed = 1, .stream = ++stream});
  }
  Tensor<T> a, b, c;
};

template <class T>
cpu::MatrixProduct<T> product_of(const Product& of, Matrices<T>& in) {
  return {of.rows,
          of.columns,
          of.depth,
          in.a.data(),
          of.a_transposed ? 1 : of.depth,
          of.a_transposed ? of.rows : 1,
          in.b.data(),
          of.b_transposed ? 1 : of.columns,
          of.b_transposed ? of.depth : 1,
          in.c.data()};
}

/// C(i, j) + sum_r A(i, r) B(r, j) in double, and the sum of the terms' sizes.
template <class T>
std::pair<double, double> entry(const cpu::MatrixProduct<T>& of, const Tensor<T>& before, Index i, Index j) {
  double sum = static_cast<double>(before.data()[i * of.columns + j]), size = std::abs(sum);
  for (Index r = 0; r < of.depth; ++r) {
    const double term = static_cast<double>(of.a[i * of.a_row + r * of.a_column]) *
                        static_cast<double>(of.b[r * of.b_row + j * of.b_column]);
    sum += term;
    size += std::abs(term);
  }
  return {sum, size};
}

template <class T>
void expect_products(Isa isa) {
  for (const Product& of : every_case()) {
    Matrices<T> in(of);
    const Tensor<T> before = in.c.clone();
    const cpu::MatrixProduct<T> product = product_of(of, in);
    kernels<T>(isa).add_product(product);
    Index wrong = 0;
    for (Index i = 0; i < of.rows; ++i)
      for (Index j = 0; j < of.columns; ++j) {
        const auto [want, size] = entry(product, before, i, j);
        const double error = std::abs(static_cast<double>(in.c.data()[i * of.columns + j]) - want);
        const double rounding = static_cast<double>(of.depth + 1) * std::numeric_limits<T>::epsilon() * size;
        if (!(error <= rounding)) ++wrong;
      }
    for (Index i = of.rows * of.columns; i < in.c.size(); ++i)
      if (in.c.data()[i] != before.data()[i]) ++wrong;
    EXPECT_EQ(wrong, 0) << of.rows << " x " << of.columns << ", depth " << of.depth << ", A transposed "
                        << of.a_transposed << ", B transposed " << of.b_transposed;
  }
}

TEST(Products, AreThoseOfEveryInstructionSet) {
  for_each_isa([](Isa isa) {
    expect_products<float>(isa);
    expect_products<double>(isa);
  });
}

/// A row (x, x) times columns (-x, x): without a fused multiply-add both products are rounded alike, and nothing is left.
template <class T>
void expect_fused(Isa isa) {
  constexpr T unit = std::numeric_limits<T>::epsilon();
  Matrices<T> in({.rows = 1, .columns = 129, .depth = 2, .a_transposed = false, .b_transposed = false});
  in.a.fill(1 + unit);
  in.b.fill(1 + unit);
  in.c.fill(0);
  for (Index j = 0; j < 129; ++j) in.b.data()[j] = -1 - unit;
  kernels<T>(isa).add_product(
      product_of({.rows = 1, .columns = 129, .depth = 2, .a_transposed = false, .b_transposed = false}, in));
  const bool fuses = isa != Isa::x86_64 && isa != Isa::generic;
  EXPECT_EQ(std::ranges::count(in.c.view().elements().first(129), fuses ? unit * unit : T{0}), 129);
}

TEST(Products, AreFusedWhereTheInstructionSetCan) {
  for_each_isa([](Isa isa) {
    expect_fused<float>(isa);
    expect_fused<double>(isa);
  });
}

// So it makes no difference how the rows of a batch are distributed.
TEST(Products, GiveARowTheSameBitsAloneAsAmongOthers) {
  for_each_isa([](Isa isa) {
    for (const Product& of : every_case()) {
      Matrices<float> together(of), apart(of);
      kernels<float>(isa).add_product(product_of(of, together));
      for (Index i = 0; i < of.rows; ++i) {
        cpu::MatrixProduct<float> row = product_of(of, apart);
        row.rows = 1;
        row.a += i * row.a_row;
        row.c += i * of.columns;
        kernels<float>(isa).add_product(row);
      }
      EXPECT_TRUE(std::ranges::equal(together.c.view().elements(), apart.c.view().elements()))
          << of.rows << " x " << of.columns << ", depth " << of.depth;
    }
  });
}

// A training that resumes has its arrays at other addresses.
TEST(Products, HaveTheSameBitsAtAnyAddress) {
  for_each_isa([](Isa isa) {
    for (const Product& of : every_case()) {
      Matrices<float> in(of);
      std::vector<float> a(1 + static_cast<std::size_t>(in.a.size())),
          b(1 + static_cast<std::size_t>(in.b.size())), c(1 + static_cast<std::size_t>(in.c.size()));
      std::ranges::copy(in.a.view().elements(), a.begin() + 1);
      std::ranges::copy(in.b.view().elements(), b.begin() + 1);
      std::ranges::copy(in.c.view().elements(), c.begin() + 1);
      cpu::MatrixProduct<float> product = product_of(of, in);
      kernels<float>(isa).add_product(product);
      product.a = a.data() + 1;
      product.b = b.data() + 1;
      product.c = c.data() + 1;
      kernels<float>(isa).add_product(product);
      EXPECT_TRUE(std::ranges::equal(in.c.view().elements(), std::span(c).subspan(1)))
          << of.rows << " x " << of.columns << ", depth " << of.depth;
    }
  });
}

}  // namespace
}  // namespace ring_attention::test
