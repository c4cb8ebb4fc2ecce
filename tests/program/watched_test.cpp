// What a ring tells the watchdog, and when each of its channels does what.

#include "program/watched.hpp"

#include <gtest/gtest.h>

#include "ring_attention/attention/backward.hpp"
#include "ring_attention/attention/blockwise.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::test {
namespace {

/// Writes down each call of the ring, and the activity at that time.
class Diary : public LoopbackTransport {
 public:
  Diary(LoopbackWorld& world, int rank, int channel, std::string name, const Activity& activity,
        std::string& text)
      : LoopbackTransport(world, rank, channel), name_(std::move(name)), activity_(activity), text_(text) {}
  void start(const Exchange& exchange) {
    text_ += name_ + "start; ";
    LoopbackTransport::start(exchange);
  }
  void finish() {
    text_ += name_ + "finish (" + activity_.describe() + "); ";
    LoopbackTransport::finish();
  }
  void drain() { text_ += name_ + activity_.describe() + "; "; }

 private:
  std::string name_;
  const Activity& activity_;
  std::string& text_;
};

/// Writes down the end of each step's compute.
template <class Base>
class DiaryEngine : public Base {
 public:
  DiaryEngine(const Activity& activity, std::string& text) : Base({}), activity_(activity), text_(text) {}

  void accumulate(const KeyValue<float>& kv, const Progress& progress) {
    Base::accumulate(kv, progress);
    text_ += activity_.describe() + " done; ";
  }
  void accumulate(const KeyValue<float>& kv, const KeyValueGradient<float>& gradient,
                  const Progress& progress) {
    Base::accumulate(kv, gradient, progress);
    text_ += activity_.describe() + " done; ";
  }

 private:
  const Activity& activity_;
  std::string& text_;
};

TEST(RingForward, TellsTheWatchdogAboutEveryStep) {
  std::string diary;
  LoopbackWorld world(3);
  world.run([&](int rank) {
    const Placement placement(PlacementKind::contiguous, 6, 3);
    const Tensor<float> q({1, 1, 2, 2});
    KvParcel<float> kv({1, 1, 6, 2}, placement, rank);
    Activity activity;
    std::string text;
    DiaryEngine<BlockwiseEngine<float>> engine(activity, text);
    engine.begin(q, placement.ranges(rank));
    Watched transport(activity, [&] { return Diary(world, rank, 0, "", activity, text); });
    ring_forward(engine, transport, kv);
    EXPECT_GE(activity.beats(), 3u + 2 + 1 + 3) << "phases and tiles";
    if (rank == 1) diary = text;
  });
  EXPECT_EQ(diary,
            "start; compute, step 0 done; finish (exchange, step 0, peer 0); "
            "start; compute, step 1 done; finish (exchange, step 1, peer 0); "
            "compute, step 2 done; drain; ");
}

std::string diary_of(int ranks, int whose) {
  std::string diary;
  LoopbackWorld world(ranks);
  world.run([&](int rank) {
    const Placement placement(PlacementKind::contiguous, Index{2} * ranks, ranks);
    const Tensor<float> q({1, 1, 2, 2}), lse({1, 1, 2, 1});
    KvParcel<float> kv({1, 1, 6, 2}, placement, rank), gradients({1, 1, 6, 2}, placement, rank);
    Activity activity;
    std::string text;
    DiaryEngine<BlockwiseBackward<float>> engine(activity, text);
    engine.begin({q, q, lse, q}, placement.ranges(rank));
    Watched kv_transport(activity, [&] { return Diary(world, rank, 0, "kv ", activity, text); });
    Watched gradient_transport(
        activity, [&] { return Diary(world, rank, 1, "dkv ", activity, text); }, Watched::gradients);
    ring_backward(engine, kv_transport, gradient_transport, kv, gradients);
    EXPECT_EQ(gradients.owner(), rank) << "they are with their owner";
    if (rank == whose) diary = text;
  });
  return diary;
}

TEST(RingBackward, GradientsTravelOneBeatBehind) {
  EXPECT_EQ(diary_of(3, 1),
            "kv start; compute, step 0 done; dkv start; kv finish (exchange, step 0, peer 0); "
            "kv start; compute, step 1 done; dkv finish (exchange, step 1, peer 0); dkv start; "
            "kv finish (exchange, step 1, peer 0); "
            "compute, step 2 done; dkv finish (exchange, step 2, peer 0); dkv start; "
            "dkv finish (exchange, step 2, peer 0); "
            "kv drain; dkv drain; ");
}

TEST(RingBackward, OneRankExchangesNothing) {
  EXPECT_EQ(diary_of(1, 0), "compute, step 0 done; kv drain; dkv drain; ");
}

}  // namespace
}  // namespace ring_attention::test
