// The arguments bias, dropout and sinks of ring_attention.hpp that are refused. (Values and gradients: partitions_test.cpp.)

#include <gtest/gtest.h>

#include <limits>

#include "api/user.hpp"

namespace ring_attention::test {
namespace {

constexpr double quiet_nan = std::numeric_limits<double>::quiet_NaN();

Case everything() {
  Case what{.batch = 2,
            .kv_heads = 2,
            .group = 2,
            .queries = 13,
            .keys = 17,
            .dim = 8,
            .scoring = {0.5, Mask::causal(4)},
            .bias_batch = 2,
            .bias_heads = 4};
  what.scoring.sinks = {0.5, -1, 0, 2};
  what.scoring.dropout = {.probability = 0.25, .seed = 3};
  return what;
}

/// `spoil` spoils the arguments of the last rank; all ranks throw the same message, which has `said`.
template <class Spoil>
void expect_refused(const std::string& said, Spoil spoil) {
  const auto problem = make_gradient_problem<float>(everything());
  User<float> user(problem);
  if (user.place.rank == user.place.size - 1) spoil(user);
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
  const int size = place_in(MPI_COMM_WORLD).size;
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
