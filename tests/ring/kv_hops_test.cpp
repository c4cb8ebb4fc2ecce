// The hops of K,V that a mask needs: counted pair by pair, and by formula; without the others the ring gives the same
// bits, whatever is in memory that was not received.

#include "ring_attention/ring/kv_hops.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "support/masks.hpp"
#include "support/run.hpp"

namespace ring_attention::test {
namespace {

std::vector<int> hops(PlacementKind kind, Index seq, int ranks, const Mask& mask) {
  return kv_hops(mask, {kind, seq, ranks}, {kind, seq, ranks});
}

/// The hops up to the last rank that sees a key of `owner`, pair by pair.
int counted(const Mask& mask, const Placement& queries, const Placement& keys, int owner) {
  int needed = 0;
  for (int hop = 1; hop < keys.ranks(); ++hop) {
    const int rank = (owner + hop) % keys.ranks();
    for (const Index query : positions(queries.ranges(rank)))
      for (const Index key : positions(keys.ranges(owner)))
        if (mask.allowed(query, key)) needed = hop;
  }
  return needed;
}

/// Do the ends of the ranges decide what is visible, so that no hop is made that is not needed? The tokens of a range
/// are consecutive, all are in documents, and no range of two documents has a band as well.
bool decided_by_ends(const Mask& mask, PlacementKind kind, Index queries, Index keys) {
  if (mask.sets) return true;  // query by query
  if (kind == PlacementKind::striped) return false;
  if (mask.documents == nullptr) return true;
  const Index end = mask.documents->end();
  const bool inside = mask.offset >= 0 && queries + mask.offset <= end && keys <= end;
  const bool band = std::min(mask.left, mask.right) < Mask::unlimited;
  return inside && (kind == PlacementKind::contiguous || !band);
}

TEST(KvHops, ReachTheLastRankThatSeesAKey) {
  int equal = 0, with_documents = 0;
  for (const int ranks : {1, 2, 3, 4, 5, 7})
    for (const PlacementKind kind : placement_kinds)
      for (const auto& [queries, keys] : {std::pair<Index, Index>{29, 29}, {9, 31}, {31, 9}, {3, 3}})
        for (const auto& [mask_name, scoring] : every_scoring(queries, keys, 1, 1)) {
          SCOPED_TRACE(mask_name + ", " + name(kind) + " on " + std::to_string(ranks));
          const Placement rows(kind, queries, ranks), columns(kind, keys, ranks);
          const std::vector<int> found = kv_hops(scoring.mask, rows, columns);
          ASSERT_EQ(found.size(), static_cast<std::size_t>(ranks));
          for (int owner = 0; owner < ranks; ++owner) {
            const int needed = counted(scoring.mask, rows, columns, owner);
            EXPECT_GE(found[static_cast<std::size_t>(owner)], needed) << owner;
            if (!decided_by_ends(scoring.mask, kind, queries, keys)) continue;
            EXPECT_EQ(found[static_cast<std::size_t>(owner)], needed) << owner;
            ++equal;
            with_documents += scoring.mask.documents && needed + 1 < ranks ? 1 : 0;
          }
        }
  EXPECT_GT(equal, 1000);
  EXPECT_GT(with_documents, 100) << "hops that documents make unnecessary";
}

TEST(KvHops, ByFormula) {
  const auto contiguous = PlacementKind::contiguous;
  EXPECT_EQ(hops(contiguous, 40, 4, {}), (std::vector<int>{3, 3, 3, 3}));
  EXPECT_EQ(hops(contiguous, 40, 4, Mask::causal()), (std::vector<int>{3, 2, 1, 0})) << "half";
  EXPECT_EQ(hops(PlacementKind::striped, 40, 4, Mask::causal()), (std::vector<int>{3, 3, 3, 3}));
  EXPECT_EQ(hops(PlacementKind::zigzag, 40, 4, Mask::causal()), (std::vector<int>{3, 3, 3, 3}));
  const auto documents = [](std::vector<Index> ends) {
    return std::make_shared<const Documents>(std::move(ends));
  };
  EXPECT_EQ(hops(contiguous, 40, 4, {.documents = documents({0, 10, 20, 30, 40})}),
            (std::vector<int>{0, 0, 0, 0}))
      << "a document a rank";
  EXPECT_EQ(hops(contiguous, 40, 4, {.right = 0, .documents = documents({0, 15, 25, 40})}),
            (std::vector<int>{1, 1, 1, 0}))
      << "each rank sees tokens of the one before it";
  for (const Index left : {0, 1, 9, 10, 11, 25}) {  // shards of c = 10 tokens: ceil(left / c)
    const int window = static_cast<int>((left + 9) / 10);
    EXPECT_EQ(hops(contiguous, 40, 4, {.left = left, .right = 0}),
              (std::vector<int>{std::min(window, 3), std::min(window, 2), std::min(window, 1), 0}));
  }
  EXPECT_EQ(hops(contiguous, 40, 4, {.left = 1, .right = 1}), (std::vector<int>{1, 3, 3, 3}))
      << "a key after the query: nearly all the way round";
  EXPECT_EQ(hops(contiguous, 2, 4, {}), (std::vector<int>{1, 3, 0, 0}))
      << "ranks without tokens need and have none";
}

/// Fills what was sent with NaN as soon as it may be overwritten, so that a parcel that does not come leaves NaN.
class ForgetsWhatItSent : public LoopbackTransport {
 public:
  using LoopbackTransport::LoopbackTransport;
  void start(const Hop& hop) override {
    LoopbackTransport::start(hop);
    sent_ = hop.send;
  }
  void finish() override {
    LoopbackTransport::finish();
    auto* memory = reinterpret_cast<double*>(const_cast<std::byte*>(sent_.data()));
    std::fill_n(memory, sent_.size() / sizeof(double), std::numeric_limits<double>::quiet_NaN());
  }

 private:
  std::span<const std::byte> sent_;
};

/// Memory whose arrays, of type double, are NaN at first.
class NanAllocator : public Allocator {
 public:
  [[nodiscard]] void* allocate(std::size_t bytes) const override {
    void* memory = host_allocator().allocate(bytes);
    std::fill_n(static_cast<double*>(memory), bytes / sizeof(double),
                std::numeric_limits<double>::quiet_NaN());
    return memory;
  }
  void free(void* memory, std::size_t bytes) const noexcept override { host_allocator().free(memory, bytes); }
};
class NanMemory : public HostMemory {
 private:
  [[nodiscard]] const Allocator& allocator() const override { return allocator_; }
  NanAllocator allocator_;
};

/// A device whose memory is such one.
class NanDevice : public ReadableDevice<double> {
 public:
  using ReadableDevice<double>::ReadableDevice;
  [[nodiscard]] const Memory& memory() const override { return memory_; }

 private:
  NanMemory memory_;
};

TEST(KvHops, WithoutTheOthersTheRingGivesTheSameBits) {
  for_each_case(200, [](Dice& dice, Index index) {
    const int ranks = static_cast<int>(dice.between(2, 7));
    Case what = random_case(dice, index, ranks);
    if (dice.one_in(3))
      what.scoring.mask = {dice.between(0, 9), dice.between(0, 2), what.keys - what.queries};
    SCOPED_TRACE(std::to_string(ranks) + " ranks, " + to_string(what));
    auto needed = make_gradient_problem<double>(what);
    what.every_hop = true;
    const auto all = make_gradient_problem<double>(what);
    const Team ring{.rings = ranks};
    const auto sent_all = run(all, ring), sent_needed = run(needed, ring);
    const auto poisoned = run(needed, ring, CpuDevice<double>(), links_with<ForgetsWhatItSent>);
    for (const auto& [name, got] :
         {std::pair{"the hops that are needed", &sent_needed}, {"what was sent is NaN", &poisoned}}) {
      EXPECT_TRUE(same_bits(got->attended, sent_all.attended)) << name;
      EXPECT_TRUE(same_bits(got->gradients, sent_all.gradients)) << name;
    }
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_LE(sent_needed[rank].forward_kv.bytes_sent, sent_all[rank].forward_kv.bytes_sent);
    EXPECT_TRUE(same_bits(run(needed.forward, ring, NanDevice({}, 0)).attended, sent_all.attended))
        << "what was not received is NaN";
  });
}

TEST(KvHops, OfReadableEnginesNeedNothingElse) {
  for_each_case(60, [](Dice& dice, Index index) {
    const int ranks = static_cast<int>(dice.between(2, 5));
    const auto problem = make_problem<double>(random_case(dice, index, ranks));
    EXPECT_TRUE(agrees(run(problem, {.rings = ranks}, NanDevice({}, problem.what.block)), problem));
  });
}

TEST(KvHops, ACausalMaskOnContiguousSlicesSendsHalf) {
  Case what{.queries = 40, .keys = 40, .scoring = {0.5, Mask::causal()}, .every_hop = false};
  const auto got = run(make_problem<float>(what), {.rings = 4});
  Index sent = 0;
  for (const auto& rank : got.ranks) sent += rank.forward_kv.bytes_sent;
  EXPECT_EQ(sent, Index{3} * 2 * what.kv().size() * static_cast<Index>(sizeof(float)) / 2);
}

}  // namespace
}  // namespace ring_attention::test
