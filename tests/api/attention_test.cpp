// forward and backward of ring_attention.hpp: the same bits in new arrays and in those of the caller, over MPI and over Peers,
// and no communicator from the second call on.

#include <gtest/gtest.h>

#include "api/user.hpp"
#include "ring_attention/observed_call.hpp"
#include "ring_attention/parallel/same_bits_processor.hpp"
#include "ring_attention/peer_ranks.hpp"
#include "support/input_error.hpp"
#include "support/mpi_peers.hpp"

namespace {
int communicators = 0;
}

// MPI's profiling interface.
extern "C" int MPI_Comm_dup(MPI_Comm comm, MPI_Comm* copy) {
  ++communicators;
  return PMPI_Comm_dup(comm, copy);
}
extern "C" int MPI_Comm_split(MPI_Comm comm, int colour, int key, MPI_Comm* part) {
  ++communicators;
  return PMPI_Comm_split(comm, colour, key, part);
}

namespace ring_attention::test {
namespace {

Division division_of(const std::string& partition, int ranks) {
  return division_named(partition, partition == "hybrid" && ranks % 2 == 0 ? 2 : 1);
}

/// In new arrays and in those of the caller, over MPI and over Peers.
template <class T>
void expect_the_same_bits(const Case& what, const std::string& partition) {
  SCOPED_TRACE(partition + ", " + to_string(what));
  const Communicator comm(MPI_COMM_WORLD);
  const Division division = division_of(partition, comm.size());
  const auto problem = make_gradient_problem<T>(make_problem<T>(what), random_grad_out<T>(what));
  const User<T> own(problem, partition, division.share_heads.value_or(1));
  const auto want = own.attend();
  const auto want_gradients = own.differentiate(want);

  Attention attention{mpi(MPI_COMM_WORLD), cores(), division};
  AttentionResult<T> into{Tensor<T>(want.out.shape()), Tensor<T>(own.q.shape().per_row())};
  Gradients<T> gradients{Tensor<T>(own.q.shape()),
                         Tensor<T>(own.k.shape()),
                         Tensor<T>(own.v.shape()),
                         {{own.bias ? Tensor<T>(own.bias->shape()) : Tensor<T>()}}};
  MpiPeers over;
  for (int call = 0; call < 4; ++call) {
    if (call == 2) attention.ranks = peers(over);
    communicators = 0;
    (void)forward(attention, own.q, own.k, own.v, own.placement, own.scoring, own.bias, into);
    EXPECT_TRUE(same_bits(into, want));
    const GradientViews<T> to{gradients.q, gradients.k, gradients.v, gradients.bias};
    gradients.numbers() = backward(attention, own.q, own.k, own.v, into, own.grad_out, own.placement,
                                   own.scoring, own.bias, {}, to)
                              .numbers();
    EXPECT_TRUE(same_bits(gradients, want_gradients));
    if (call > 0) {
      EXPECT_EQ(communicators, 0);
    }
  }
}

TEST(Attention, WritesTheSameBitsToTheCallersArrays) {
  const int ranks = Communicator(MPI_COMM_WORLD).size();
  for (const std::string partition : {"ring", "ulysses", "hybrid", "all-gather"}) {
    const Case what{.kv_heads = ranks,
                    .group = 2,
                    .queries = 23,
                    .keys = 23,
                    .dim = 4,
                    .scoring = {0.5, Mask::causal()},
                    .kind = PlacementKind::zigzag,
                    .value_dim = 3};
    expect_the_same_bits<float>(what, partition);
    expect_the_same_bits<double>(what, partition);
  }
  expect_the_same_bits<double>(with_everything({1, 1}, {0.3, Mask::causal(36), alibi_slopes(4)}, 0.2),
                               "ring");
}

void expect_that_wrong_arguments_leave_it_usable(const Attention& attention) {
  const Communicator comm(MPI_COMM_WORLD);
  const Case what{.queries = 11, .keys = 11};
  const auto problem = make_gradient_problem<float>(make_problem<float>(what), random_grad_out<float>(what));
  const User<float> own(problem);
  Tensor<float> out(own.q.shape()), lse(own.q.shape().per_row()), wrong({1, 1, 100, 1});
  const bool last = comm.rank() + 1 == comm.size();
  expect_input_error(
      [&] {
        (void)forward(attention, own.q, own.k, own.v, own.placement, own.scoring, {},
                      ResultViews<float>(out, last ? wrong : lse));
      },
      "rank " + std::to_string(comm.size() - 1) + ": lse is [1, 1, 100, 1] where");
  Scoring other = own.scoring;
  other.dropout = {.probability = last ? 0.25 : 0.5};
  if (comm.size() > 1)
    expect_input_error([&] { (void)forward(attention, own.q, own.k, own.v, own.placement, other); },
                       "the ranks disagree: rank 0 has dropout 0.5, rank " + std::to_string(comm.size() - 1) +
                           " has dropout 0.25");
  EXPECT_TRUE(same_bits(forward(attention, own.q, own.k, own.v, own.placement, own.scoring), own.attend()));
}

TEST(Attention, WrongArgumentsLeaveItUsable) {
  expect_that_wrong_arguments_leave_it_usable({mpi(MPI_COMM_WORLD)});
}

TEST(Attention, WrongArgumentsLeaveItUsableOverPeers) {
  MpiPeers over;
  expect_that_wrong_arguments_leave_it_usable({peers(over)});
}

/// Writes down what a rank does.
struct Notes : Observer {
  void computes(const Pass& pass) override { text += std::string(pass.name) + "; "; }
  void step(int number, const TokenRanges&) override { text += "step " + std::to_string(number) + "; "; }
  void begins(const char* part) override { text += std::string(part) + "; "; }
  void arrived(const ObservedHop& hop, double) override {
    text +=
        (hop.channel == Channel::kv ? "K,V from " : "dK,dV from ") + std::to_string(hop.ring.prev()) + "; ";
  }
  void beats() override { ++tiles; }
  void exchanged(const PieceExchange&, double seconds) override { waited += seconds; }
  std::string text;
  int tiles = 0;
  double waited = 0;
};

TEST(Attention, TellsItsObserversEachStepAndHop) {
  const Communicator comm(MPI_COMM_WORLD);
  const Case what{.queries = 11, .keys = 11};
  const auto problem = make_gradient_problem<float>(make_problem<float>(what), random_grad_out<float>(what));
  const User<float> own(problem);
  Notes notes;
  const Attention watched{observed(mpi(MPI_COMM_WORLD), {&notes}), observed(cores(), {&notes})};
  const auto got = forward(watched, own.q, own.k, own.v, own.placement, own.scoring);
  const auto want = own.attend();
  EXPECT_TRUE(same_bits(got, want));
  std::string text = "forward; ";
  for (int step = 0; step < comm.size(); ++step) {
    if (step > 0) text += "K,V from " + std::to_string((comm.rank() + comm.size() - 1) % comm.size()) + "; ";
    text += "step " + std::to_string(step) + "; ";
  }
  EXPECT_EQ(notes.text, text + "finish; ");
  EXPECT_GE(notes.tiles, comm.size());
}

// The ranks keep their groups from call to call: the second call waits for its own exchanges only.
TEST(Attention, TellsItsObserversOfEveryPartition) {
  const Communicator comm(MPI_COMM_WORLD);
  const Case what{.kv_heads = comm.size(), .queries = 11, .keys = 11};
  const auto problem = make_gradient_problem<float>(make_problem<float>(what), random_grad_out<float>(what));
  for (const std::string partition : {"ring", "ulysses", "hybrid", "all-gather"}) {
    const Division division = division_of(partition, comm.size());
    const User<float> own(problem, partition, division.share_heads.value_or(1));
    Notes notes;
    const Attention watched{observed(mpi(MPI_COMM_WORLD), {&notes}), observed(cores(), {&notes}), division};
    const auto result = forward(watched, own.q, own.k, own.v, own.placement, own.scoring);
    (void)backward(watched, own.q, own.k, own.v, result, own.grad_out, own.placement, own.scoring);
    EXPECT_NE(notes.text.find("finish; backward; step 0; "), std::string::npos) << partition << notes.text;
    EXPECT_GE(notes.tiles, 2 * own.grid.ring.size) << partition;
    EXPECT_NEAR(notes.waited, exchanged(watched.ranks->links(own.grid)).exposed_seconds, 1e-9);
  }
}

/// Each row of an array times scale * the number of the row.
Tensor<float> times_rows(const Tensor<float>& array, const Tensor<float>& numbers, double scale) {
  Tensor<float> product = array.clone();
  for (Index i = 0; i < product.size(); ++i)
    product.data()[i] *= static_cast<float>(scale) * numbers.data()[i / array.shape().dim];
  return product;
}

// d lse / d score is the probability. So dQ is scale * g * (attention with V = K), and dK is the dV of dO = scale * g * Q.
TEST(Attention, TheGradientOfALossThatReadsLse) {
  const Communicator comm(MPI_COMM_WORLD);
  const Case what{
      .kv_heads = comm.size(), .group = 2, .queries = 23, .keys = 23, .scoring = {0.5, Mask::causal()}};
  const auto problem = make_gradient_problem<float>(make_problem<float>(what), random_grad_out<float>(what));
  for (const std::string partition : {"ring", "ulysses", "hybrid", "all-gather"})
    for (const Index tile : {0, 1}) {
      SCOPED_TRACE(partition + ", same_bits " + std::to_string(tile));
      const Division division = division_of(partition, comm.size());
      const User<float> own(problem, partition, division.share_heads.value_or(1));
      const Attention attention{mpi(MPI_COMM_WORLD), tile > 0 ? ring_attention::same_bits(tile) : cores(),
                                division};
      const auto result = forward(attention, own.q, own.k, own.v, own.placement, own.scoring);
      Tensor<float> grad_lse(result.lse.shape());
      fill_random(grad_lse.view(), {.stream = static_cast<std::uint64_t>(comm.rank())});
      const auto gradients = [&](const Tensor<float>& grad_out,
                                 std::optional<View<const float>> of_lse = {}) {
        return backward(attention, own.q, own.k, own.v, result, grad_out, own.placement, own.scoring, {},
                        of_lse);
      };
      const auto got = gradients(Tensor<float>(result.out.shape()), grad_lse);
      const auto of_keys = forward(attention, own.q, own.k, own.k, own.placement, own.scoring);
      EXPECT_TRUE(compare(got.q, times_rows(of_keys.out, grad_lse, 0.5), {.absolute = 2e-6}).ok);
      EXPECT_TRUE(compare(got.k, gradients(times_rows(own.q, grad_lse, 0.5)).v, {.absolute = 2e-6}).ok);
      EXPECT_TRUE(std::ranges::all_of(got.v.view().elements(), [](float x) { return x == 0; }));
    }
}

TEST(Attention, TheDivisionMayChangeBetweenCalls) {
  const Communicator comm(MPI_COMM_WORLD);
  const Case what{.kv_heads = comm.size(), .queries = 11, .keys = 11};
  const auto problem = make_gradient_problem<float>(make_problem<float>(what), random_grad_out<float>(what));
  Attention attention{mpi(MPI_COMM_WORLD)};
  for (const std::string partition : {"ring", "ulysses", "all-gather", "ring"}) {
    attention.division = division_named(partition);
    const User<float> own(problem, partition);
    EXPECT_TRUE(own.agrees(forward(attention, own.q, own.k, own.v, own.placement, own.scoring))) << partition;
  }
}

}  // namespace
}  // namespace ring_attention::test
