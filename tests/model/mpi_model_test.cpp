// A model on meshes over MPI: bit for bit that of the threads, over both transports, with FSDP and without.

#include "model/model_runs.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"

namespace ring_attention::test {
namespace {

class MpiModel : public testing::Test {
 protected:
  Communicator comm{MPI_COMM_WORLD};

  /// Trains on the mesh, and expects the bits of the threads.
  template <class Link>
  void expect_the_bits_of_the_threads(const MeshShape& mesh, const Training& what) {
    SCOPED_TRACE(to_string(mesh));
    const ModelLinks<MpiMesh<Link>> links(MpiMesh<Link>(comm, mesh), what.shape);
    const Trained got = train_in<double>(links, what);
    const Trained want = std::move(train_ranks<double>(mesh, what)[static_cast<std::size_t>(comm.rank())]);
    for (std::size_t step = 0; step < want.steps.size(); ++step) {
      EXPECT_EQ(got.steps[step].score.loss, want.steps[step].score.loss);
      EXPECT_EQ(got.steps[step].gradient_norm, want.steps[step].gradient_norm);
    }
    EXPECT_TRUE(same_bits(got.gradients, want.gradients));
    EXPECT_TRUE(same_bits(got.weights, want.weights));
  }
};

TEST_F(MpiModel, MeshesOfThisManyRanks) {
  Training what{.steps = 3};
  for (const int tensor : {1, 2, 8})
    for (const int ulysses : {1, 2})
      for (const int data : {1, 2}) {
        const int others = tensor * ulysses * data;
        if (comm.size() % others != 0 || tensor * ulysses > 8) continue;
        what.sharding = what.sharding == Sharding::none ? Sharding::fsdp : Sharding::none;
        expect_the_bits_of_the_threads<OverlappedTransport>({tensor, ulysses, comm.size() / others, data},
                                                            what);
      }
}

TEST_F(MpiModel, BothTransportsHaveTheSameBits) {
  expect_the_bits_of_the_threads<OddEvenTransport>({1, 1, comm.size(), 1}, {.steps = 2});
}

TEST_F(MpiModel, AllGather) {
  expect_the_bits_of_the_threads<OverlappedTransport>({1, 1, comm.size(), 1},
                                                      {.steps = 2, .context = ContextKind::all_gather});
}

TEST_F(MpiModel, AMeshOfAnotherSizeIsRefused) {
  EXPECT_THROW(MpiMesh<>(comm, MeshShape{1, 1, 1, comm.size() + 1}), InputError);
  EXPECT_THROW(MpiMesh<>(comm, MeshShape{0, 1, 1, comm.size()}), InputError);
}

}  // namespace
}  // namespace ring_attention::test
