// forward with a function of the caller as the kernel, in every partition.

#include <gtest/gtest.h>

#include "ring_attention/cpu/engine.hpp"
#include "ring_attention/parallel/function_device.hpp"
#include "ring_attention/partitions.hpp"
#include "ring_attention/ring_attention.hpp"
#include "support/agreed_error.hpp"
#include "support/masks.hpp"
#include "support/problem.hpp"

namespace ring_attention::test {
namespace {

template <class T>
AttentionResult<T> library_kernel(const AttentionTask<T>& task) {
  CpuEngine<T> engine(task.scoring);
  engine.begin(task.q, task.queries);
  engine.accumulate({task.k, task.v, task.keys});
  return engine.finish();
}

/// This rank's rows of the result of the whole problem.
template <class T>
testing::AssertionResult function_agrees(const Problem<T>& problem, const Division& division,
                                         const AttentionFunction<T>& function = library_kernel<T>) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const RankGrid grid = division.grid(rank, ranks);
  const Placements placement(Placement(problem.what.kind, problem.what.queries, grid.ring.size),
                             Placement(problem.what.kind, problem.what.keys, grid.ring.size));
  const TokenRanges rows = grid.slice(placement.queries), keys = grid.slice(placement.keys);
  const Attention attention{mpi(MPI_COMM_WORLD), ring_attention::kernel<T>(function), division};
  return agrees(forward(attention, rows_of(problem.q, rows), rows_of(problem.k, keys),
                        rows_of(problem.v, keys), placement, problem.what.scoring),
                problem, rows);
}

template <class T>
class Function : public testing::Test {};
using Types = testing::Types<float, double>;
TYPED_TEST_SUITE(Function, Types);

TYPED_TEST(Function, AgreesWithTheReferenceInEveryPartition) {
  int ranks = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (const auto& [name, scoring] : every_scoring(23, 23, 12, 0.6)) {
    Case what{.kv_heads = 12, .queries = 23, .keys = 23, .scoring = scoring, .kind = PlacementKind::zigzag};
    what.scoring.sinks = std::vector<double>(12, 0.5);
    const auto problem = make_problem<TypeParam>(what);
    for (const Division& division : {ring(), ulysses(), all_gather(), hybrid(ranks == 4 ? 2 : 1)})
      EXPECT_TRUE(function_agrees(problem, division)) << name;
  }
}

TYPED_TEST(Function, AnEmptyFunctionIsRefusedOnAllRanks) {
  const auto problem = make_problem<TypeParam>({});
  EXPECT_THROW((void)function_agrees<TypeParam>(problem, ring(), AttentionFunction<TypeParam>()),
               AgreedError);
  EXPECT_TRUE(function_agrees(problem, ring()));
}

TEST(FunctionArguments, ABiasIsRefused) {
  const Communicator comm(MPI_COMM_WORLD);
  const Attention attention{mpi(MPI_COMM_WORLD), ring_attention::kernel<float>(library_kernel<float>)};
  const Placement one_each(PlacementKind::contiguous, comm.size(), comm.size());
  const Tensor<float> x({1, 1, 1, 4}), bias({1, 1, 1, comm.size()});
  expect_agreed_error([&] { (void)forward(attention, x, x, x, one_each, Scoring{}, bias.view()); },
                      "kernel: a function gets no bias");
}

}  // namespace
}  // namespace ring_attention::test
