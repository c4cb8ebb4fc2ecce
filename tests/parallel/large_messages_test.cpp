// Messages above 2^31 bytes over MPI, where a count of type int overflows: a parcel of the ring, a piece of the all-to-all.
// Two ranks, 8 GiB in all at a time; a long test.

#include <gtest/gtest.h>

#include "ring_attention/parallel/collectives/mpi_all_to_all.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention::test {
namespace {

constexpr Index above_2_to_31 = (Index{1} << 31) + 4096;

/// Numbers of a rank: each place of the array counts, and so does the rank.
float number_at(int rank, Index place) {
  return static_cast<float>((place * 40503 + Index{7} * rank) & 0xffffff);
}

void fill(std::span<float> numbers, int rank) {
  for (Index i = 0; i < std::ssize(numbers); ++i) numbers[static_cast<std::size_t>(i)] = number_at(rank, i);
}

void expect_numbers_of(int rank, std::span<const float> got) {
  Index wrong = 0;
  for (Index i = 0; i < std::ssize(got); ++i)
    wrong += got[static_cast<std::size_t>(i)] != number_at(rank, i) ? 1 : 0;
  EXPECT_EQ(wrong, 0) << "of " << got.size() << " numbers of rank " << rank;
}

/// Computes nothing, and looks at each number of K and V: they are one array of their owner.
class LooksAtParcels : public Engine<float> {
 public:
  explicit LooksAtParcels(Ring ring) : ring_(ring) {}
  void accumulate(const KeyValue<float>& kv, const Progress& progress) override {
    progress();
    ASSERT_EQ(kv.v.data(), kv.k.data() + kv.k.shape().size());
    expect_numbers_of(ring_.owner(step_++), {kv.k.data(), static_cast<std::size_t>(2 * kv.k.shape().size())});
  }
  [[nodiscard]] AttentionResult<float> finish() override { return {}; }
  [[nodiscard]] int steps() const { return step_; }

 private:
  Ring ring_;
  int step_ = 0;
};

template <class Link>
void expect_a_large_parcel() {
  const Communicator comm(MPI_COMM_WORLD);
  ASSERT_EQ(comm.size(), 2);
  constexpr Index dim = 64, tokens = above_2_to_31 / static_cast<Index>(2 * dim * sizeof(float));
  const Shape kv{1, 1, 2 * tokens, dim};
  KvParcel<float> parcel(kv, Placement(PlacementKind::contiguous, 2 * tokens, 2), comm.rank());
  fill(parcel.elements(), comm.rank());
  Link transport(comm);
  LooksAtParcels engine(transport.ring());
  ring_forward(engine, transport, parcel);
  EXPECT_EQ(engine.steps(), 2);
  EXPECT_EQ(transport.statistics().bytes_sent, above_2_to_31);
  EXPECT_EQ(transport.statistics().bytes_received, above_2_to_31);
}

TEST(LargeMessages, ThroughTheOverlappedRing) { expect_a_large_parcel<OverlappedTransport>(); }
TEST(LargeMessages, ThroughTheBlockingRing) { expect_a_large_parcel<OddEvenTransport>(); }

TEST(LargeMessages, ThroughTheAllToAll) {
  const Communicator comm(MPI_COMM_WORLD);
  ASSERT_EQ(comm.size(), 2);
  MpiAllToAll group(comm, {1, 2});
  const int other = 1 - comm.rank();
  std::vector<float> mine(above_2_to_31 / sizeof(float)), theirs(mine.size(), -1);
  fill(mine, comm.rank());
  Pieces pieces;
  pieces.send.resize(2);
  pieces.receive.resize(2);
  pieces.send[static_cast<std::size_t>(other)] = std::as_bytes(std::span(mine));
  pieces.receive[static_cast<std::size_t>(other)] = std::as_writable_bytes(std::span(theirs));
  group.all_to_all(pieces);
  expect_numbers_of(other, theirs);
}

}  // namespace
}  // namespace ring_attention::test
