// A model on meshes over MPI: bit for bit that of the threads, over both transports, with FSDP and without.

#include <bit>

#include "model/model_runs.hpp"
#include "ring_attention/core/mix.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention::test {
namespace {

/// A number for the bits of all that a rank has computed.
std::uint64_t checksum(const Trained& trained) {
  std::uint64_t sum = 0;
  const auto add = [&](double number) { sum = mix(sum ^ std::bit_cast<std::uint64_t>(number)); };
  for (const StepReport& step : trained.steps) {
    add(step.score.loss);
    add(step.gradient_norm);
  }
  for (const Named* matrices : {&trained.gradients, &trained.weights})
    for (const auto& [name, matrix] : *matrices)
      for (const double number : matrix.view().elements()) add(number);
  return sum;
}

class MpiModel : public testing::Test {
 protected:
  Communicator comm{MPI_COMM_WORLD};

  /// Trains on the mesh, and expects the bits of the threads, which rank 0 runs.
  void expect_the_bits_of_the_threads(const MeshShape& mesh, const Training& what, bool odd_even = false) {
    SCOPED_TRACE(to_string(mesh));
    const ModelLinks links = mpi_links(comm, mesh, what.shape, odd_even);
    const auto got = ring_attention::all_gather(comm, checksum(train_in<double>(links, what)));
    if (comm.rank() > 0) return;
    const std::vector<Trained> want = train_ranks<double>(mesh, what);
    for (std::size_t rank = 0; rank < want.size(); ++rank)
      EXPECT_EQ(got[rank], checksum(want[rank])) << "rank " << rank;
  }
};

TEST_F(MpiModel, MeshesOfThisManyRanks) {
  Training what{.steps = comm.size() > 4 ? 1 : 3};  // ranks that share cores mostly wait for each other
  for (const int tensor : {1, 2, 8})
    for (const int ulysses : {1, 2})
      for (const int data : {1, 2}) {
        const int others = tensor * ulysses * data;
        if (comm.size() % others != 0) continue;
        what.sharding = what.sharding == Sharding::none ? Sharding::fsdp : Sharding::none;
        expect_the_bits_of_the_threads({tensor, ulysses, comm.size() / others, data}, what);
      }
}

TEST_F(MpiModel, BothTransportsHaveTheSameBits) {
  expect_the_bits_of_the_threads({1, 1, comm.size(), 1}, {.steps = 1}, true);
}

TEST_F(MpiModel, AllGather) {
  expect_the_bits_of_the_threads({1, 1, comm.size(), 1}, {.steps = 1, .context = ContextKind::all_gather});
}

TEST_F(MpiModel, AMeshOfAnotherSizeIsRefused) {
  EXPECT_THROW(Mesh(comm.rank(), comm.size(), {1, 1, 1, comm.size() + 1}), InputError);
  EXPECT_THROW(Mesh(comm.rank(), comm.size(), {0, 1, 1, comm.size()}), InputError);
}

}  // namespace
}  // namespace ring_attention::test
