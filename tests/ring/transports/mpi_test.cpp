// The transports over MPI, blocking and overlapped. (Rings of any size over both: ../../conformance/mpi_test.cpp.)

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <type_traits>

#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/adapter.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"
#include "support/mpi_run.hpp"
#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

template <class Link>
class MpiRing : public testing::Test {
 protected:
  Communicator comm{MPI_COMM_WORLD};
  Ring place{comm.rank(), comm.size()};
};
using MpiTransports = testing::Types<OddEvenTransport, OverlappedTransport>;
TYPED_TEST_SUITE(MpiRing, MpiTransports);

/// Notes whether a hop was complete before finish() was called.
class NotesArrival : public TransportAdapter {
 public:
  using TransportAdapter::TransportAdapter;
  void start(const Hop& hop) override {
    incoming_ = hop.receive;
    std::ranges::fill(incoming_, std::byte{0});
    TransportAdapter::start(hop);
  }
  void finish() override {
    early_ += arrived() ? 1 : 0;
    TransportAdapter::finish();
  }
  /// No parcel of the test has a byte that is 0.
  [[nodiscard]] bool arrived() const { return std::ranges::find(incoming_, std::byte{0}) == incoming_.end(); }
  [[nodiscard]] int early() const { return early_; }

 private:
  std::span<std::byte> incoming_;
  int early_ = 0;
};

/// Computes nothing; calls progress() until the next K,V are here, or until it gives up.
class WaitsInProgress : public Engine<float> {
 public:
  WaitsInProgress(const NotesArrival& transport, std::chrono::milliseconds patience)
      : transport_(transport), patience_(patience) {}
  void accumulate(const KeyValue<float>&, const Progress& progress) override {
    const auto give_up = std::chrono::steady_clock::now() + patience_;
    do progress();
    while (!transport_.arrived() && std::chrono::steady_clock::now() < give_up);
  }
  [[nodiscard]] AttentionResult<float> finish() override { return {}; }

 private:
  const NotesArrival& transport_;
  std::chrono::milliseconds patience_;
};

// An engine that calls progress() hides a whole hop of the overlapped ring: it is complete before finish() is called. The
// blocking ring, where nothing moves before finish(), is the mutant.
TYPED_TEST(MpiRing, AHopIsCompleteBeforeItsEndWhereItOverlaps) {
  constexpr bool overlaps = std::is_same_v<TypeParam, OverlappedTransport>;
  const Ring ring = this->place;
  const Placement placement(PlacementKind::contiguous, Index{4096} * ring.size, ring.size);
  KvParcel<float> parcel({1, 1, 1, 64}, placement, ring.rank);  // 2 MiB: far more than MPI buffers
  std::ranges::fill(std::as_writable_bytes(parcel.elements()), std::byte{1});
  NotesArrival transport(std::make_unique<TypeParam>(this->comm));
  WaitsInProgress engine(transport, std::chrono::milliseconds(overlaps ? 20'000 : 10));
  ring_forward(engine, transport, parcel);
  EXPECT_EQ(transport.early(), overlaps ? ring.steps() - 1 : 0);
}

TYPED_TEST(MpiRing, MisuseIsAnError) {
  TypeParam transport(this->comm);
  EXPECT_NE(thrown_message([&] { transport.finish(); }).find("finish() without start()"), std::string::npos);
  if (this->place.size == 1) return;  // a blocking ring of one cannot send to itself
  transport.start({});
  EXPECT_NE(thrown_message([&] { transport.start({}); }).find("start() while a hop is under way"),
            std::string::npos);
  EXPECT_NE(thrown_message([&] { transport.drain(); }).find("drain() while a hop is under way"),
            std::string::npos);
  transport.finish();
  transport.drain();
}

TYPED_TEST(MpiRing, KnowsItsPlace) {
  const TypeParam transport(this->comm);
  EXPECT_EQ(transport.ring().rank, this->comm.rank());
  EXPECT_EQ(transport.ring().size, this->comm.size());
}

// 256 KiB a message on both channels: far more than MPI buffers, so that a wrong order of sends would block.
TYPED_TEST(MpiRing, MessagesTooLargeToBuffer) {
  using Over = std::conditional_t<std::is_same_v<TypeParam, OverlappedTransport>, MpiLinks,
                                  MpiLinksOver<OddEvenTransport>>;
  expect_the_run_of_threads<float, Over>(
      this->comm, make_gradient_problem<float>({.queries = 8, .keys = 256 * this->place.size, .dim = 64}),
      {.rings = this->place.size});
}

// The parcels of one channel do not arrive in the other, whichever is waited for first.
TYPED_TEST(MpiRing, ChannelsDoNotMeet) {
  if (this->place.size == 1) return;
  const int numbers[] = {10 * this->place.rank, 10 * this->place.rank + 1};
  int got[] = {-1, -1};
  TypeParam first(this->comm, 0), second(this->comm, 1);
  const auto hop = [&](int channel) {
    return Hop{std::as_bytes(std::span(numbers + channel, 1)),
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
