// The rings over MPI, blocking and overlapped: bit for bit the ring of threads, and close to the reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <type_traits>

#include "ring/mpi_rings.hpp"
#include "ring_attention/ring/transports/adapter.hpp"
#include "support/thrown_message.hpp"

namespace ring_attention::test {
namespace {

template <class Link>
class MpiRing : public MpiRings<Link> {};
TYPED_TEST_SUITE(MpiRing, MpiTransports);

// With and without the causal mask, 1, 2 and 8 query heads to a KV head, float and double: once each. Most
// random problems run on threads, because ranks that share cores mostly wait for each other.
TYPED_TEST(MpiRing, RandomProblems) {
  for_each_case(12, [&](Dice& dice, Index index) {
    const Case what = random_case(dice, index, this->place.size);
    if (index / 6 % 2 == 0)
      this->expect_a_right_ring(make_problem<float>(what));
    else
      this->expect_a_right_ring(make_problem<double>(what));
  });
}

TYPED_TEST(MpiRing, FewerTokensThanRanks) {
  this->expect_a_right_ring(
      make_problem<float>({.group = 2, .queries = 5, .keys = 5, .scoring = {1, Mask::causal()}}));
  this->expect_a_right_ring(make_problem<float>({.queries = 1, .keys = 1}));
  this->expect_a_right_ring(make_problem<float>({.queries = 9, .keys = 1}));
}

// 256 KiB a message: far more than MPI buffers, so that a wrong order of sends would block.
TYPED_TEST(MpiRing, MessagesTooLargeToBuffer) {
  this->expect_a_right_ring(make_problem<float>({.queries = 8, .keys = 256 * this->place.size, .dim = 64}));
}

/// Notes whether a hop was complete before finish() was called.
class NotesArrival : public TransportAdapter {
 public:
  using TransportAdapter::TransportAdapter;
  void start(const Exchange& exchange) override {
    incoming_ = exchange.receive;
    std::ranges::fill(incoming_, std::byte{0});
    TransportAdapter::start(exchange);
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

}  // namespace
}  // namespace ring_attention::test
