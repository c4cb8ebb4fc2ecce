// Scenes that no flag of the program makes, in the library's ring: `player_scenes NAME FILE` on some ranks writes a trace.
// Two mistakes, by their ids, and a hop over the slow link of lesson 06.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "mistakes/mistaken_ring.hpp"
#include "program/bench/parts.hpp"
#include "program/trace/traced.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/parallel/cpu_device.hpp"
#include "ring_attention/parallel/mpi_links.hpp"
#include "ring_attention/parallel/observed.hpp"
#include "ring_attention/ring/transports/adapter.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"

using namespace ring_attention;

namespace {

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

/// The forward of a ring, and with `backward` also its backward.
void play(ContextParallel<float>& attention, const Tensor<float>& q, bool backward) {
  auto forward = attention.begin_forward(q, attention.kv(q, q));
  attention.travel(forward);
  if (!backward) return;
  const AttentionResult<float> result = forward.engine->finish();
  auto back = attention.begin_backward({q, result.out, result.lse, q}, attention.kv(q, q));
  attention.travel(back);
}

int record(const Communicator& comm, const std::string& scene, Trace& trace) {
  const RankGrid grid(comm.rank(), comm.size(), 1);
  const bool is_slow = scene == "hides" || scene == "sticks-out";
  const Shape all{1, is_slow ? 1 : 2, scene == "hides" ? 8192 : scene == "sticks-out" ? 1024 : 2048, 64};
  const Placement tokens(PlacementKind::contiguous, all.seq, comm.size());
  const SharedAttention shared{grid, ring(), tokens, all, all, {0.125}};
  const RingMistake& mistake = ring_mistake(is_slow ? "" : scene);
  const bool backward = mistake.gradient_hops != nullptr;
  MpiLinks overlapped(comm, grid.ulysses, grid.ring);
  MpiLinksOver<OddEvenTransport> odd_even(comm, grid.ulysses, grid.ring);
  AdaptedLinks<SlowTransport> slow(overlapped);
  TraceObserver observer(trace);
  const CpuDevice<float> cpu;
  const MistakenDevice device(cpu, mistake, grid.ring.ring(comm.rank()), tokens, {&observer});
  MistakenLinks links(is_slow    ? static_cast<Links&>(slow)
                      : backward ? static_cast<Links&>(overlapped)
                                 : odd_even,
                      mistake, grid, {&observer});
  ContextParallel<float> attention(device, links, shared);
  Tensor<float> q(all.with_seq(tokens.tokens(comm.rank())));
  fill_random(q.view(), {.stream = static_cast<std::uint64_t>(comm.rank())});
  barrier(comm);
  play(attention, q, backward);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return mpi_main(argc, argv, [&](const Communicator& comm) {
    agree(comm, [&] {
      if (argc != 3) throw InputError("player_scenes hides|sticks-out|MISTAKE FILE: the mistake by its id");
    });
    Activity activity;
    return with_trace(comm, argv[2], activity, [&](Trace* trace) { return record(comm, argv[1], *trace); });
  });
}
