// The backward over MPI, blocking and overlapped: bit for bit that of the ring of threads, whose gradients agree
// with the reference. So all three transports agree bit for bit.

#include <gtest/gtest.h>

#include <array>

#include "ring/mpi_rings.hpp"
#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

template <class Link>
class MpiBackward : public MpiRings<Link> {};
TYPED_TEST_SUITE(MpiBackward, MpiTransports);

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
