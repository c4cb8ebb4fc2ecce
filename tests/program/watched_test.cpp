// What a ring tells the watchdog, and when each of its channels does what.

#include <gtest/gtest.h>

#include "program/activity_observer.hpp"
#include "ring_attention/ring/backward.hpp"
#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/adapter.hpp"
#include "ring_attention/ring/transports/loopback.hpp"
#include "support/engines.hpp"

namespace ring_attention::test {
namespace {

/// What one rank did, and its activity.
struct Diary {
  std::string text;
  Activity activity;
  ActivityObserver observer{activity};
  int moved = 0;  // calls of progress() that arrived

  void note(const std::string& what) { text += what + "; "; }
  void note_compute() { note(activity.describe() + " done"); }
};

/// Writes down each call of the ring, and the activity at that time.
class DiaryTransport : public TransportAdapter {
 public:
  DiaryTransport(std::unique_ptr<Transport> transport, std::string name, Diary& diary)
      : TransportAdapter(std::move(transport)), name_(std::move(name)), diary_(diary) {}
  void start(const Hop& hop) override {
    diary_.note(name_ + "start");
    TransportAdapter::start(hop);
  }
  void progress() override { ++diary_.moved; }
  void finish() override {
    diary_.note(name_ + "finish (" + diary_.activity.describe() + ")");
    TransportAdapter::finish();
  }
  void drain() override { diary_.note(name_ + diary_.activity.describe()); }

 private:
  std::string name_;
  Diary& diary_;
};
std::unique_ptr<Transport> observed_transport(LoopbackWorld& world, int rank, Channel channel,
                                              const std::string& name, Diary& diary) {
  auto loopback = std::make_unique<LoopbackTransport>(world, rank, static_cast<int>(channel));
  return observed(std::make_unique<DiaryTransport>(std::move(loopback), name, diary), {&diary.observer},
                  channel);
}

/// Only writes down the end of each step's compute.
class DiaryEngine : public Engine<float> {
 public:
  explicit DiaryEngine(Diary& diary) : diary_(diary) {}
  void accumulate(const KeyValue<float>&, const Progress& progress) override {
    progress();
    diary_.note_compute();
  }
  [[nodiscard]] AttentionResult<float> finish() override { return {}; }

 private:
  Diary& diary_;
};

TEST(RingForward, TellsTheWatchdogAboutEveryStep) {
  std::string diary;
  LoopbackWorld world(3);
  world.run([&](int rank) {
    const Placement placement(PlacementKind::contiguous, 6, 3);
    KvParcel<float> kv({1, 1, 6, 2}, placement, rank);
    Diary own;
    DiaryEngine engine(own);
    const auto transport = observed_transport(world, rank, Channel::kv, "", own);
    ring_forward(engine, *transport, kv);
    EXPECT_GE(own.activity.beats(), 3u + 2 + 1 + 3) << "phases and tiles";
    EXPECT_EQ(own.moved, 3) << "messages move once in each tile";
    if (rank == 1) diary = own.text;
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
    KvParcel<float> kv({1, 1, 6, 2}, placement, rank), gradients({1, 1, 6, 2}, placement, rank);
    Diary own;
    WorkingBackward engine([&](const auto&) { own.note_compute(); });
    const auto kv_transport = observed_transport(world, rank, Channel::kv, "kv ", own);
    const auto gradient_transport = observed_transport(world, rank, Channel::gradients, "dkv ", own);
    ring_backward(engine, *kv_transport, *gradient_transport, kv, gradients);
    EXPECT_EQ(gradients.owner(), rank) << "they are with their owner";
    if (rank == whose) diary = own.text;
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
