// The backward over MPI, blocking and overlapped: bit for bit that of the ring of threads, whose gradients agree
// with the reference. So all three transports agree bit for bit.

#include <gtest/gtest.h>

#include <array>

#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"
#include "support/backward_runs.hpp"
#include "support/masks.hpp"
#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

template <class Link>
class MpiBackward : public testing::Test {
 protected:
  Communicator comm{MPI_COMM_WORLD};
  Ring place{comm.rank(), comm.size()};

  /// This rank of a ring over MPI, forward and backward, and all ranks of one in the process of rank 0: ranks that share
  /// cores would all wait for each other's threads.
  template <class T>
  void expect_a_right_ring(const GradientProblem<T>& problem) {
    SCOPED_TRACE(to_string(problem.what()));
    const auto transport = [&](int channel) { return std::make_unique<Link>(comm, channel); };
    const auto forward = run_rank<T>(problem.forward, place, transport);
    const auto got = run_rank_backward<T>(problem, forward.attended, place, transport);

    EXPECT_TRUE(sent_what_it_should(got, problem, place));
    const auto hash = [](const AttentionResult<T>& attended, const Gradients<T>& g) {
      return hash_of(attended.out, attended.lse, g.q, g.k, g.v, g.bias, as_tensor(g.sinks));
    };
    const auto hashes = all_gather(comm, hash(forward.attended, got.gradients));
    const auto peaks = all_gather(comm, got.peak_bytes);
    if (place.rank == 0) {
      const auto threads_forward = run_loopback(problem.forward, place.size);
      const auto threads = run_loopback_backward(problem, threads_forward);
      EXPECT_TRUE(agrees(gathered(threads, problem), problem));
      for (std::size_t rank = 0; rank < threads.size(); ++rank) {
        EXPECT_EQ(hashes[rank], hash(threads_forward[rank].attended, threads[rank].gradients))
            << "the bits of rank " << rank;
        EXPECT_EQ(peaks[rank], threads[rank].peak_bytes) << "rank " << rank;
      }
    }
    if (place.size == 1) {
      EXPECT_TRUE(same_bits(got.gradients, single_device_gradients(problem)));
    }
  }
};

using Transports = testing::Types<OddEvenTransport, OverlappedTransport>;
TYPED_TEST_SUITE(MpiBackward, Transports);

// Ranks that share cores mostly wait for each other, so most random problems run on threads. Up to four ranks, with and
// without the causal mask, 1, 2 and 8 query heads to a KV head, float and double: once each.
TYPED_TEST(MpiBackward, RandomProblems) {
  for_each_case(this->place.size <= 4 ? 12 : 3, [&](Dice& dice, Index index) {
    const Case what = random_case(dice, index, this->place.size);
    if (index / 6 % 2 == 0)
      this->expect_a_right_ring(make_gradient_problem<float>(what));
    else
      this->expect_a_right_ring(make_gradient_problem<double>(what));
  });
}

TYPED_TEST(MpiBackward, EveryPlacement) {
  const Scoring scoring = every_scoring(13, 17, 4, 0.5).back().scoring;  // documents, a window, ALiBi
  for (const PlacementKind kind : placement_kinds)
    this->expect_a_right_ring(make_gradient_problem<float>(
        {.group = 2, .queries = 13, .keys = 17, .scoring = scoring, .block = 3, .kind = kind}));
}

TYPED_TEST(MpiBackward, FewerTokensThanRanks) {
  this->expect_a_right_ring(make_gradient_problem<float>(
      {.group = 2, .queries = 5, .keys = 5, .scoring = {1, Mask::causal()}, .kind = PlacementKind::zigzag}));
  this->expect_a_right_ring(
      make_gradient_problem<float>({.queries = 9, .keys = 1, .kind = PlacementKind::striped}));
}

// 256 KiB a message on both channels: far more than MPI buffers.
TYPED_TEST(MpiBackward, MessagesTooLargeToBuffer) {
  this->expect_a_right_ring(
      make_gradient_problem<float>({.queries = 8, .keys = 256 * this->place.size, .dim = 64}));
}

// The parcels of one channel do not arrive in the other, whichever is waited for first.
TYPED_TEST(MpiBackward, ChannelsDoNotMeet) {
  if (this->place.size == 1) return;
  const int numbers[] = {10 * this->place.rank, 10 * this->place.rank + 1};
  int got[] = {-1, -1};
  TypeParam first(this->comm, 0), second(this->comm, 1);
  const auto hop = [&](int channel) {
    return Exchange{std::as_bytes(std::span(numbers + channel, 1)),
                    std::as_writable_bytes(std::span(got + channel, 1))};
  };
  first.start(hop(0));
  second.start(hop(1));
  second.finish();
  EXPECT_EQ(got[1], 10 * this->place.prev() + 1);
  first.finish();
  EXPECT_EQ(got[0], 10 * this->place.prev());
  first.drain();
  second.drain();
}

// Every rank sends four bytes where eight are due. (In the blocking ring an odd rank would detect this before
// it sends, while the even ranks wait for it: it has to end the job.)
TEST(OverlappedTransport, AParcelThatIsTooShortIsAnError) {
  const Communicator comm(MPI_COMM_WORLD);
  const std::array<std::byte, 4> mine{};
  std::array<std::byte, 8> theirs{};
  OverlappedTransport transport(comm);
  transport.start({mine, theirs});
  const std::string message = thrown_message([&] { transport.finish(); });
  const std::string sender = "rank " + std::to_string(transport.ring().prev());
  EXPECT_NE(message.find(sender + " sent 4 bytes where 8 were due"), std::string::npos) << message;
}

TEST(OverlappedTransport, FinishingTwiceIsAnError) {
  const Communicator comm(MPI_COMM_WORLD);
  const int mine = comm.rank();
  int theirs = -1;
  OverlappedTransport transport(comm);
  transport.progress();  // nothing is under way: nothing to do
  transport.start({std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(&theirs, 1))});
  transport.progress();
  transport.finish();
  transport.progress();
  EXPECT_EQ(theirs, transport.ring().prev());
  EXPECT_NE(thrown_message([&] { transport.finish(); }).find("finish() without start()"), std::string::npos);
  transport.drain();
  EXPECT_EQ(transport.statistics().messages_sent, 1);
  EXPECT_EQ(transport.statistics().bytes_received, 4);
}

}  // namespace
}  // namespace ring_attention::test
