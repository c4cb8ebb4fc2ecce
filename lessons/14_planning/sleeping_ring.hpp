// A real ring whose computing is a sleep: threads over a simulated link. A sleep needs no core.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "ring_attention/ring/forward.hpp"
#include "ring_attention/ring/transports/loopback.hpp"

namespace ring_attention::lesson_14 {

using StepSeconds = std::function<double(int rank, int step)>;

class SleepingEngine : public Engine<float> {
 public:
  explicit SleepingEngine(std::function<double(int step)> seconds) : seconds_(std::move(seconds)) {}

  void accumulate(const KeyValue<float>&, const Progress&) override {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds_(step_)));
    ++step_;
  }
  [[nodiscard]] AttentionResult<float> finish() override { return {}; }

 private:
  std::function<double(int step)> seconds_;
  int step_ = 0;
};

/// Seconds of the library's forward, every hop of which takes `hop` seconds.
inline double real_ring_seconds(int ranks, const StepSeconds& compute, double hop) {
  const Placement placement(PlacementKind::contiguous, Index{2} * ranks, ranks);
  LoopbackWorld world(ranks, {.latency = std::chrono::duration<double>(hop)});
  const auto begin = std::chrono::steady_clock::now();
  world.run([&](int rank) {
    SleepingEngine engine([&](int step) { return compute(rank, step); });
    KvParcel<float> kv({1, 1, placement.seq(), 4}, placement, rank);
    LoopbackTransport transport(world, rank);
    ring_forward(engine, transport, kv);
  });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace ring_attention::lesson_14
