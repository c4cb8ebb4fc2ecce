// The bias, dropout and sinks of ring_attention.hpp: values, gradients, and arguments that are refused.

#include <gtest/gtest.h>

#include <limits>

#include "ring_attention/ring_attention.hpp"
#include "support/gradients.hpp"

namespace ring_attention::test {
namespace {

constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

Case everything(PlacementKind kind, Index bias_batch, Index bias_heads) {
  Case what{.batch = 2,
            .kv_heads = 2,
            .group = 2,
            .queries = 13,
            .keys = 17,
            .dim = 8,
            .scoring = {0.5, Mask::causal(4)},
            .bias_batch = bias_batch,
            .bias_heads = bias_heads,
            .kind = kind};
  what.scoring.sinks = {0.5, -1, 0, 2};
  what.scoring.dropout = {.probability = 0.25, .seed = 3};
  return what;
}

/// One rank's arrays of a problem.
template <class T>
struct BiasUser {
  explicit BiasUser(const GradientProblem<T>& whole_problem) : problem(whole_problem) {}

  [[nodiscard]] AttentionResult<T> attend() const {
    return forward(MPI_COMM_WORLD, q, k, v, placement, scoring, options, bias);
  }
  [[nodiscard]] Gradients<T> differentiate(const AttentionResult<T>& result) const {
    return backward(MPI_COMM_WORLD, q, k, v, result, grad_out, placement, scoring, options, bias);
  }
  [[nodiscard]] Placement placed(Index tokens) const {
    int size = 1;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    return {problem.what().kind, tokens, size};
  }
  [[nodiscard]] static int rank() {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    return rank;
  }

  const GradientProblem<T>& problem;
  Placements placement{placed(problem.what().queries), placed(problem.what().keys)};
  TokenRanges rows = placement.queries.ranges(rank()), columns = placement.keys.ranges(rank());
  Tensor<T> q = rows_of(problem.forward.q, rows), k = rows_of(problem.forward.k, columns),
            v = rows_of(problem.forward.v, columns), grad_out = rows_of(problem.grad_out, rows);
  std::optional<Tensor<T>> bias = rows_of(problem.forward.bias, rows);
  Scoring scoring = problem.what().scoring;
  Options options;
};

template <class T>
class BiasDropoutSinks : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(BiasDropoutSinks, Types);

template <class T>
void expect_rows(const char* name, const Tensor<T>& got, const Tensor<double>& want, const TokenRanges& rows,
                 double magnitude, const GradientProblem<T>& problem) {
  const Tolerance tolerance = gradient_tolerance<T>(4 * 13, problem.want.max_abs_score, magnitude);
  const Comparison comparison = compare(got, rows_of(want, rows), tolerance);
  EXPECT_TRUE(comparison.ok) << name << ' ' << describe(comparison);
}

TYPED_TEST(BiasDropoutSinks, AgreeWithTheReferenceOverBothTransports) {
  const PlacementKind kinds[] = {PlacementKind::contiguous, PlacementKind::striped, PlacementKind::zigzag};
  const std::pair<Index, Index> extents[] = {{1, 1}, {2, 1}, {2, 4}};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto problem =
        make_gradient_problem<TypeParam>(everything(kinds[i], extents[i].first, extents[i].second));
    BiasUser<TypeParam> user(problem);
    const AttentionResult<TypeParam> result = user.attend();
    const Gradients<TypeParam> got = user.differentiate(result);
    EXPECT_TRUE(agrees(result, problem.forward, user.rows));
    expect_rows("dq", got.q, problem.want.q, user.rows, problem.want.magnitude_q, problem);
    expect_rows("dk", got.k, problem.want.k, user.columns, problem.want.magnitude_k, problem);
    expect_rows("dv", got.v, problem.want.v, user.columns, problem.want.magnitude_v, problem);
    expect_rows("dbias", got.bias, problem.want.bias, user.rows, problem.want.magnitude_bias, problem);
    EXPECT_TRUE(grad_sinks_agree(got.sinks, problem)) << "the sum over all ranks, on every rank";

    user.options.transport = TransportKind::odd_even;
    EXPECT_TRUE(same_bits(user.attend(), result));
    EXPECT_TRUE(same_bits(user.differentiate(result), got));
  }
}

TYPED_TEST(BiasDropoutSinks, RanksMayHaveNoTokens) {
  Case what = everything(PlacementKind::contiguous, 1, 4);
  what.queries = 1;
  const auto problem = make_gradient_problem<TypeParam>(what);
  const BiasUser<TypeParam> user(problem);
  const auto result = user.attend();
  if (user.rank() == 0) {
    EXPECT_TRUE(agrees(result, problem.forward, user.rows));
  }
  EXPECT_EQ(user.differentiate(result).bias.shape(), user.bias->shape());
}

// ---- refused -------------------------------------------------------------------------------------------

/// `spoil` spoils the arguments of the last rank; all ranks throw the same message, which has `said`.
template <class Spoil>
void expect_refused(const std::string& said, Spoil spoil) {
  const auto problem = make_gradient_problem<float>(everything(PlacementKind::contiguous, 2, 4));
  BiasUser<float> user(problem);
  if (user.rank() == user.placement.queries.ranks() - 1) spoil(user);
  try {
    (void)user.attend();
    ADD_FAILURE() << "no error where this is due: " << said;
  } catch (const AgreedError& error) {
    EXPECT_NE(std::string(error.what()).find(said), std::string::npos) << error.what();
  }
}

TEST(BiasDropoutSinkArguments, AreRefused) {
  expect_refused("bias is [", [](auto& user) { user.bias = Tensor<float>({2, 3, user.q.shape().seq, 17}); });
  expect_refused("bias is [",
                 [](auto& user) { user.bias = Tensor<float>({2, 4, user.q.shape().seq + 1, 17}); });
  expect_refused("3 sinks for 4 heads", [](auto& user) { user.scoring.sinks.pop_back(); });
  expect_refused("a sink is NaN or +inf", [](auto& user) { user.scoring.sinks[1] = quiet_nan; });
  expect_refused("dropout.probability is 1:", [](auto& user) { user.scoring.dropout.probability = 1; });
}

TEST(BiasDropoutSinkArguments, AreTheSameOnAllRanks) {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size == 1) return;
  expect_refused("rank 0 has dropout.seed 3", [](auto& user) { user.scoring.dropout.seed = 4; });
  expect_refused("rank 0 has dropout.step 0", [](auto& user) { user.scoring.dropout.step = 4; });
  expect_refused("rank 0 has a sink 2", [](auto& user) { user.scoring.sinks[3] = 1; });
  expect_refused("rank 0 has 4 sinks", [](auto& user) { user.scoring.sinks.clear(); });
  expect_refused(
      "rank 0 has a bias of batch 2, heads 4, keys 17, rank " + std::to_string(size - 1) + " has no bias",
      [](auto& user) { user.bias = {}; });
}

}  // namespace
}  // namespace ring_attention::test
