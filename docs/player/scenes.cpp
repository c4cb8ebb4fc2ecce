// Scenes that no flag of the program makes, in the library's ring: `player_scenes NAME FILE` on some ranks writes a trace.
// Two mistakes of the lessons, and a hop over the slow link of lesson 06. Each is an engine or a transport that stands before
// the right one.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "program/bench/parts.hpp"
#include "program/trace/traced.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/parallel/observed.hpp"
#include "ring_attention/ring/transports/adapter.hpp"

using namespace ring_attention;

namespace {

/// Lesson 05's step-too-few: N - 1 steps, as the paper's algorithm 1 is printed.
class StepTooFew : public Engine<float> {
 public:
  StepTooFew(std::unique_ptr<Engine<float>> engine, int steps)
      : engine_(std::move(engine)), left_(steps - 1) {}
  void accumulate(const KeyValue<float>& kv, const Progress& progress) override {
    if (left_-- > 0) engine_->accumulate(kv, progress);
  }
  [[nodiscard]] AttentionResult<float> finish() override { return engine_->finish(); }

 private:
  std::unique_ptr<Engine<float>> engine_;
  int left_;
};

/// Lesson 08's hop-too-few: dK,dV make N - 1 hops, like K,V.
class HopTooFew : public TransportAdapter {
 public:
  using TransportAdapter::TransportAdapter;
  void start(const Hop& hop) override {
    if (++hop_ < ring().gradient_hops()) TransportAdapter::start(hop);
  }
  void finish() override {
    if (hop_ < ring().gradient_hops()) TransportAdapter::finish();
  }

 private:
  int hop_ = 0;
};

/// Lesson 06's simulated link: a hop takes as long as its bytes take, and no CPU cycles.
class SlowTransport : public TransportAdapter {
 public:
  using TransportAdapter::TransportAdapter;
  void start(const Hop& hop) override {
    const double bytes = static_cast<double>(std::max(hop.send.size(), hop.receive.size()));
    over_ = clock_seconds() + bytes / bytes_per_second;
    TransportAdapter::start(hop);
  }
  void finish() override {
    const double begin = clock_seconds();
    TransportAdapter::finish();
    std::this_thread::sleep_for(std::chrono::duration<double>(over_ - clock_seconds()));
    const double exposed = statistics_.exposed_seconds + clock_seconds() - begin;
    statistics_ = TransportAdapter::statistics();
    statistics_.exposed_seconds = exposed;
  }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }

 private:
  static constexpr double bytes_per_second = 1.1e8;
  double over_ = 0;
  TransportStatistics statistics_;
};

using Attention = ContextParallel<float>;

/// The forward of a ring, and for hop_too_few its backward.
void play(Attention& attention, const Tensor<float>& q, int ranks, const std::string& scene) {
  auto forward = attention.begin_forward(q, attention.kv(q, q));
  if (scene == "step-too-few")
    forward.engine = std::make_unique<StepTooFew>(std::move(forward.engine), ranks);
  attention.travel(forward);
  if (scene != "hop-too-few") return;
  const AttentionResult<float> result = forward.engine->finish();
  auto backward = attention.begin_backward({q, result.out, result.lse, q}, attention.kv(q, q));
  backward.sums_transport = std::make_unique<HopTooFew>(std::move(backward.sums_transport));
  attention.travel(backward);
}

int record(const Communicator& comm, const std::string& scene, Trace& trace) {
  const RankGrid grid(comm.rank(), comm.size(), 1);
  const bool is_slow = scene == "hides" || scene == "sticks-out";
  const Shape all{1, is_slow ? 1 : 2, scene == "hides" ? 8192 : scene == "sticks-out" ? 1024 : 2048, 64};
  const Placement tokens(PlacementKind::contiguous, all.seq, comm.size());
  const SharedAttention shared{grid, false, tokens, all, all, {0.125}};
  const CpuDevice<float> cpu;
  MpiLinks mpi(comm, grid.ulysses, grid.ring,
               scene == "step-too-few" ? TransportKind::odd_even : TransportKind::overlapped);
  AdaptedLinks<SlowTransport> slow(mpi);
  TraceObserver observer(trace);
  ObservedContextParallel<float> attention(cpu, is_slow ? static_cast<Links&>(slow) : mpi, shared,
                                           {&observer});
  Tensor<float> q(all.with_seq(tokens.tokens(comm.rank())));
  fill_random(q.view(), {.stream = static_cast<std::uint64_t>(comm.rank())});
  barrier(comm);
  play(attention, q, comm.size(), scene);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) {
    const std::string scene = argc == 3 ? argv[1] : "";
    agree(comm, [&] {
      if (scene != "step-too-few" && scene != "hop-too-few" && scene != "hides" && scene != "sticks-out")
        throw InputError("player_scenes step-too-few|hop-too-few|hides|sticks-out FILE");
    });
    Activity activity;
    return with_trace(comm, argv[2], activity, [&](Trace* trace) { return record(comm, scene, *trace); });
  });
}
