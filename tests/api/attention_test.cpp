// Attention of ring_attention.hpp with arrays of the host: the bits of the functions, in new arrays and in those of the
// caller, over MPI and over Peers, and no communicator from the second call on.

#include <gtest/gtest.h>

#include "api/user.hpp"
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

Options options_of(Partition partition, int ranks) {
  Options options;
  options.partition = partition;
  if (partition == Partition::hybrid) options.ulysses = ranks % 2 == 0 ? 2 : 1;
  return options;
}

template <class T>
void expect_the_bits_of_the_functions(const Case& what, Partition partition) {
  SCOPED_TRACE(name(partition) + ", " + to_string(what));
  const Communicator comm(MPI_COMM_WORLD);
  const Options options = options_of(partition, comm.size());
  const auto problem = make_gradient_problem<T>(make_problem<T>(what), random_grad_out<T>(what));
  const User<T> own(problem, partition, options.ulysses);
  const auto want =
      forward(MPI_COMM_WORLD, own.q, own.k, own.v, own.placement, own.scoring, options, own.bias);
  const auto want_gradients = backward(MPI_COMM_WORLD, own.q, own.k, own.v, want, own.grad_out, own.placement,
                                       own.scoring, options, own.bias);

  Attention first(MPI_COMM_WORLD, options);
  Attention attention = std::move(first);
  AttentionResult<T> into{Tensor<T>(own.q.shape()), Tensor<T>(own.q.shape().per_row())};
  Gradients<T> gradients{Tensor<T>(own.q.shape()),
                         Tensor<T>(own.k.shape()),
                         Tensor<T>(own.v.shape()),
                         {{own.bias ? Tensor<T>(own.bias->shape()) : Tensor<T>()}}};
  MpiPeers peers;
  for (int call = 0; call < 4; ++call) {
    if (call == 2) attention = Attention(peers, options);
    communicators = 0;
    attention.forward<T>(own.arrays(), {into.out, into.lse}, own.placement, own.scoring);
    EXPECT_TRUE(same_bits(into, want));
    gradients.numbers() = attention.backward<T>(own.arrays(), {into.out, into.lse}, own.grad_out,
                                                {gradients.q, gradients.k, gradients.v, gradients.bias},
                                                own.placement, own.scoring);
    EXPECT_TRUE(same_bits(gradients, want_gradients));
    if (call > 0) {
      EXPECT_EQ(communicators, 0);
    }
  }
}

TEST(Attention, HasTheBitsOfTheFunctions) {
  const int ranks = Communicator(MPI_COMM_WORLD).size();
  for (const Partition partition :
       {Partition::ring, Partition::ulysses, Partition::hybrid, Partition::all_gather}) {
    const Case what{.kv_heads = ranks,
                    .group = 2,
                    .queries = 23,
                    .keys = 23,
                    .dim = 4,
                    .scoring = {0.5, Mask::causal()},
                    .kind = PlacementKind::zigzag};
    expect_the_bits_of_the_functions<float>(what, partition);
    expect_the_bits_of_the_functions<double>(what, partition);
  }
  expect_the_bits_of_the_functions<double>(
      with_everything({1, 1}, {0.3, Mask::causal(36), alibi_slopes(4)}, 0.2), Partition::ring);
}

void expect_that_wrong_arguments_leave_it_usable(Attention attention) {
  const Communicator comm(MPI_COMM_WORLD);
  const Case what{.queries = 11, .keys = 11};
  const auto problem = make_gradient_problem<float>(make_problem<float>(what), random_grad_out<float>(what));
  const User<float> own(problem);
  Tensor<float> out(own.q.shape()), lse(own.q.shape().per_row()), wrong({1, 1, 100, 1});
  const bool last = comm.rank() + 1 == comm.size();
  expect_input_error(
      [&] { attention.forward<float>(own.arrays(), {out, last ? wrong : lse}, own.placement, own.scoring); },
      "rank " + std::to_string(comm.size() - 1) + ": lse is [1, 1, 100, 1] where");
  Scoring other = own.scoring;
  other.dropout = {.probability = last ? 0.25 : 0.5};
  if (comm.size() > 1)
    expect_input_error([&] { attention.forward<float>(own.arrays(), {out, lse}, own.placement, other); },
                       "the ranks disagree: rank 0 has dropout 0.5, rank " + std::to_string(comm.size() - 1) +
                           " has dropout 0.25");
  attention.forward<float>(own.arrays(), {out, lse}, own.placement, own.scoring);
  EXPECT_TRUE(same_bits({std::move(out), std::move(lse)},
                        forward(MPI_COMM_WORLD, own.q, own.k, own.v, own.placement, own.scoring)));
  attention.wait();  // nothing to wait for
}

TEST(Attention, WrongArgumentsLeaveItUsable) {
  expect_that_wrong_arguments_leave_it_usable(Attention(MPI_COMM_WORLD));
}

TEST(Attention, WrongArgumentsLeaveItUsableOverPeers) {
  MpiPeers peers;
  expect_that_wrong_arguments_leave_it_usable(Attention(peers));
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
  std::string text;
  int tiles = 0;
};

TEST(Attention, TellsItsObserversEachStepAndHop) {
  const Communicator comm(MPI_COMM_WORLD);
  const Case what{.queries = 11, .keys = 11};
  const auto problem = make_gradient_problem<float>(make_problem<float>(what), random_grad_out<float>(what));
  const User<float> own(problem);
  Notes notes;
  Options options;
  options.observers = {&notes};
  const auto got = forward(MPI_COMM_WORLD, own.q, own.k, own.v, own.placement, own.scoring, options);
  const auto want = forward(MPI_COMM_WORLD, own.q, own.k, own.v, own.placement, own.scoring);
  EXPECT_TRUE(same_bits(got, want));
  std::string text = "forward; ";
  for (int step = 0; step < comm.size(); ++step) {
    if (step > 0) text += "K,V from " + std::to_string((comm.rank() + comm.size() - 1) % comm.size()) + "; ";
    text += "step " + std::to_string(step) + "; ";
  }
  EXPECT_EQ(notes.text, text + "finish; ");
  EXPECT_GE(notes.tiles, comm.size());
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
  for (const Partition partition :
       {Partition::ring, Partition::ulysses, Partition::hybrid, Partition::all_gather})
    for (const Index same_bits : {0, 1}) {
      SCOPED_TRACE(name(partition) + ", same_bits " + std::to_string(same_bits));
      Options options = options_of(partition, comm.size());
      options.same_bits = same_bits;
      const User<float> own(problem, partition, options.ulysses);
      Attention attention(MPI_COMM_WORLD, options);
      const auto result = attention.forward<float>(own.arrays(), own.placement, own.scoring);
      Tensor<float> grad_lse(result.lse.shape());
      fill_random(grad_lse.view(), {.stream = static_cast<std::uint64_t>(comm.rank())});
      const auto gradients = [&](const Tensor<float>& grad_out,
                                 std::optional<View<const float>> of_lse = {}) {
        return attention.backward<float>(own.arrays(), {result.out, result.lse}, grad_out, own.placement,
                                         own.scoring, of_lse);
      };
      const auto got = gradients(Tensor<float>(result.out.shape()), grad_lse);
      const auto of_keys = attention.forward<float>({own.q, own.k, own.k}, own.placement, own.scoring);
      EXPECT_TRUE(compare(got.q, times_rows(of_keys.out, grad_lse, 0.5), {.absolute = 2e-6}).ok);
      EXPECT_TRUE(compare(got.k, gradients(times_rows(own.q, grad_lse, 0.5)).v, {.absolute = 2e-6}).ok);
      EXPECT_TRUE(std::ranges::all_of(got.v.view().elements(), [](float x) { return x == 0; }));
    }
}

TEST(Attention, OptionsMayChangeBetweenCalls) {
  const Communicator comm(MPI_COMM_WORLD);
  const Case what{.kv_heads = comm.size(), .queries = 11, .keys = 11};
  const auto problem = make_gradient_problem<float>(make_problem<float>(what), random_grad_out<float>(what));
  Attention attention(MPI_COMM_WORLD);
  for (const Partition partition :
       {Partition::ring, Partition::ulysses, Partition::all_gather, Partition::ring}) {
    attention.options().partition = partition;
    const User<float> own(problem, partition);
    AttentionResult<float> got{Tensor<float>(own.q.shape()), Tensor<float>(own.q.shape().per_row())};
    attention.forward<float>(own.arrays(), {got.out, got.lse}, own.placement, own.scoring);
    EXPECT_TRUE(own.agrees(got)) << name(partition);
  }
}

}  // namespace
}  // namespace ring_attention::test
