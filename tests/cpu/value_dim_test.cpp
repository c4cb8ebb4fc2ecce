// V of another width than K: the fast engines against themselves on arrays with columns of zeros. (Their results otherwise:
// ../conformance.)

#include <gtest/gtest.h>

#include "cpu/every_isa.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

constexpr std::pair<Index, Index> widths[] = {{4, 1}, {5, 3},   {3, 5},
                                              {1, 6}, {16, 40}, {33, 8}};  // of K, of V

Case case_of(const std::pair<Index, Index>& columns) {
  return {.batch = 2,
          .kv_heads = 2,
          .group = 2,
          .queries = 6,
          .keys = 7,
          .dim = columns.first,
          .scoring = {0.4, Mask::causal(1)},
          .block = 3,
          .kind = PlacementKind::zigzag,
          .value_dim = columns.second};
}

/// The first columns of an array, or those and columns of zeros.
template <class T>
Tensor<T> with_columns(const Tensor<T>& array, Index columns) {
  Tensor<T> other(array.shape().with_dim(columns));
  const Shape& shape = array.shape();
  const auto n = static_cast<std::size_t>(std::min(columns, shape.dim));
  for (Index b = 0; b < shape.batch; ++b)
    for (Index h = 0; h < shape.heads; ++h)
      for (Index s = 0; s < shape.seq; ++s)
        std::ranges::copy(array.view().row(b, h, s).first(n), other.view().row(b, h, s).begin());
  return other;
}

/// Zeros behind the columns of Q and K, or of V and dO, change no bit of the others.
template <class T>
void expect_the_bits_of_equal_widths(const Device<T>& device, const Team& team) {
  for (const auto& columns : widths) {
    Case what = case_of(columns);
    what.queries = what.keys = 70;
    what.scoring.mask = Mask::causal();
    SCOPED_TRACE(to_string(team) + ": " + to_string(what));
    const auto [dim, value_dim] = columns;
    const Index both = std::max(dim, value_dim);
    GradientProblem<T> problem{make_problem<T>(what), random_grad_out<T>(what), {}};
    const TeamRun<T> got = run(problem, team, device);
    Problem<T>& forward = problem.forward;
    forward.what.dim = both;
    forward.what.value_dim = 0;
    for (Tensor<T>* array : {&forward.q, &forward.k, &forward.v, &problem.grad_out})
      *array = with_columns(*array, both);
    const TeamRun<T> equal = run(problem, team, device);
    EXPECT_TRUE(bitwise_equal(got.attended.out, with_columns(equal.attended.out, value_dim)));
    EXPECT_TRUE(bitwise_equal(got.attended.lse, equal.attended.lse));
    EXPECT_TRUE(bitwise_equal(got.gradients.q, with_columns(equal.gradients.q, dim)));
    EXPECT_TRUE(bitwise_equal(got.gradients.k, with_columns(equal.gradients.k, dim)));
    EXPECT_TRUE(bitwise_equal(got.gradients.v, with_columns(equal.gradients.v, value_dim)));
  }
}

TEST(ValueDim, HasTheBitsOfAPaddedArray) {
  for (const Team& team : {Team{}, Team{1, 3}, Team{2, 2}, Team{1, 3, true}}) {
    for_each_isa([&](Isa isa) {
      expect_the_bits_of_equal_widths<float>(CpuDevice<float>({.threads = 2, .isa = isa}), team);
      expect_the_bits_of_equal_widths<double>(CpuDevice<double>({.isa = isa}), team);
      Team tiles = team;
      tiles.tile = 8;
      expect_the_bits_of_equal_widths<float>(SameBitsDevice({.isa = isa, .same_bits = 8}), tiles);
    });
  }
}

}  // namespace
}  // namespace ring_attention::test
