// Attention that ranks share, with arrays in the memory of GPUs: forward, then backward.
#pragma once

#include "cuda/cuda_runs.hpp"
#include "ring_attention/attention/sink_gradient.hpp"
#include "ring_attention/parallel/cuda_device.hpp"
#include "ring_attention/parallel/staged_all_to_all.hpp"
#include "ring_attention/ring/transports/staged.hpp"
#include "support/parallel_runs.hpp"

namespace ring_attention::test {

/// One rank's part, with q, k, v and dO of type T. \param gathers  an all-gather; `place` then shares no heads
template <class T>
ParallelResult<float> run_rank_on_gpu(const GradientProblem<float>& problem, const RankGrid& grid,
                                      bool gathers, Links& links, StreamHandle stream) {
  const Problem<float>& p = problem.forward;
  const Case& what = p.what;
  const Placements tokens(Placement(what.kind, what.queries, grid.ring.size),
                          Placement(what.kind, what.keys, grid.ring.size));
  const TokenRanges rows = grid.slice(tokens.queries), key_rows = grid.slice(tokens.keys);
  const CudaDevice<T> device({.stream = stream}, {.stream = stream});
  const SharedAttention shared{grid,      gathers,      tokens,         what.q(),
                               what.kv(), what.scoring, what.every_hop, what.bias()};
  ContextParallel<T> attention(device, links, shared), backward_attention(device, links, shared);
  const HeadLayout& layout = attention.layout();
  const auto queries_to_heads = [&](const Tensor<float>& all) {
    return layout.queries_to_heads<T>(device.to_device(rows_of(all, rows)));
  };
  const auto keys_to_heads = [&](const Tensor<float>& all) {
    return layout.keys_to_heads<T>(device.to_device(rows_of(all, key_rows)));
  };
  const auto queries_to_host = [&](View<const float> y) {
    return device.to_host(layout.queries_to_sequence<float>(y));
  };
  ParallelResult<float> result;

  const auto q = queries_to_heads(p.q), k = keys_to_heads(p.k), v = keys_to_heads(p.v);
  const auto bias = layout.bias_to_heads<float>(bias_of(p, rows, stream));
  auto forward = attention.begin_forward(q, attention.kv(k, v), bias);
  attention.travel(forward);
  const AttentionResult<float> attended = forward.engine->finish();
  result.attended = {queries_to_host(attended.out), queries_to_host(attended.lse)};
  result.forward_kv = attention.hops(Channel::kv);
  result.forward_pieces = attention.pieces();

  const auto grad_out = queries_to_heads(problem.grad_out);
  auto backward = backward_attention.begin_backward({q, attended.out, attended.lse, grad_out, bias},
                                                    backward_attention.kv(k, v));
  backward_attention.travel(backward);
  auto gradients = backward_attention.finish(backward);
  result.gradients = {
      device.to_host(std::move(gradients.q)), device.to_host(std::move(gradients.k)),
      device.to_host(std::move(gradients.v)), device.to_host(std::move(gradients.bias)),
      sink_gradient<float>({{}, result.attended.out, result.attended.lse, rows_of(problem.grad_out, rows)},
                           what.scoring.sinks)};
  result.kv = backward_attention.hops(Channel::kv);
  result.gradient = backward_attention.hops(Channel::gradients);
  result.pieces = backward_attention.pieces();
  return result;
}

/// Ranks that are threads and share a GPU.
struct GpuThreads {
  int ulysses = 1, rings = 1;
  bool gathers = false;
  bool staged = false;  ///< parcels go through the memory of the host
  std::chrono::seconds timeout{60};
};

class GpuThreadLinks : public LoopbackLinks {
 public:
  /// All-to-alls always go through the memory of the host.
  GpuThreadLinks(LoopbackWorld& world, const RankGrid& grid, bool staged, StreamHandle stream)
      : LoopbackLinks(world, grid.rank, grid.ulysses, grid.ring),
        staged_(staged),
        stream_(stream),
        ring_(GpuThreadLinks::group(grid.ring)),
        ulysses_(GpuThreadLinks::group(grid.ulysses)) {}

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) override {
    auto loopback = LoopbackLinks::transport(channel, most_bytes);
    if (staged_) return std::make_unique<StagedTransport>(stream_, most_bytes, std::move(loopback));
    return std::make_unique<SynchronizedTransport>(stream_, std::move(loopback));
  }
  [[nodiscard]] AllToAll& ring() override { return *ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return *ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override {
    return std::make_unique<StagedAllToAll>(stream_, LoopbackLinks::group(axis));
  }

 private:
  bool staged_;
  StreamHandle stream_;
  std::unique_ptr<AllToAll> ring_, ulysses_;
};

template <class T>
std::vector<ParallelResult<float>> run_threads_on_gpu(const GradientProblem<float>& problem,
                                                      const GpuThreads& threads) {
  const int ranks = threads.ulysses * threads.rings;
  std::vector<ParallelResult<float>> results(static_cast<std::size_t>(ranks));
  LoopbackWorld world(ranks, {}, threads.timeout,
                      threads.staged ? copy_in_host_memory : copy_between_devices);
  world.run([&](int rank) {
    const cuda::Stream stream;
    const RankGrid grid(rank, ranks, threads.ulysses);
    GpuThreadLinks links(world, grid, threads.staged, stream.handle());
    results[static_cast<std::size_t>(rank)] =
        run_rank_on_gpu<T>(problem, grid, threads.gathers, links, stream.handle());
  });
  return results;
}

}  // namespace ring_attention::test
