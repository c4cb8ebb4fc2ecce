// Attention that ranks share, with arrays in the memory of a GPU.
#pragma once

#include "cuda/cuda_runs.hpp"
#include "ring_attention/parallel/collectives/staged_all_to_all.hpp"
#include "ring_attention/parallel/cuda_device.hpp"
#include "ring_attention/ring/transports/staged.hpp"
#include "support/run.hpp"

namespace ring_attention::test {

/// Names of kernels.
struct GpuKernels {
  std::string forward = "auto", backward = "auto";
};

/// The part of rank `rank`, with q, k, v and dO of type T.
template <class T>
RankRun<float> run_rank_on_gpu(const Task<float>& task, const Team& team, Links& links, int rank,
                               StreamHandle stream, const GpuKernels& kernels = {}) {
  const CudaDevice<T> device({.stream = stream, .kernel = kernels.forward},
                             {.stream = stream, .kernel = kernels.backward});
  return run_rank(task, team, device, links, rank);
}

class GpuThreadLinks : public PeerLinks {
 public:
  /// All-to-alls always go through the memory of the host.
  GpuThreadLinks(LoopbackWorld& world, const RankGrid& grid, bool staged, StreamHandle stream)
      : PeerLinks(world.peers(grid.rank), grid.ulysses, grid.ring),
        staged_(staged),
        stream_(stream),
        ring_(GpuThreadLinks::group(grid.ring)),
        ulysses_(GpuThreadLinks::group(grid.ulysses)) {}

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) override {
    auto loopback = PeerLinks::transport(channel, most_bytes);
    if (staged_) return std::make_unique<StagedTransport>(stream_, most_bytes, std::move(loopback));
    return std::make_unique<SynchronizedTransport>(stream_, std::move(loopback));
  }
  [[nodiscard]] AllToAll& ring() override { return *ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return *ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override {
    return std::make_unique<StagedAllToAll>(stream_, PeerLinks::group(axis));
  }

 private:
  bool staged_;
  StreamHandle stream_;
  std::unique_ptr<AllToAll> ring_, ulysses_;
};

/// Ranks that are threads and share a GPU. \param staged  parcels go through the memory of the host
template <class T>
TeamRun<float> run_on_gpu(const Task<float>& task, const Team& team, bool staged = false,
                          const GpuKernels& kernels = {},
                          std::chrono::seconds timeout = std::chrono::seconds(60)) {
  LoopbackWorld world(team.ranks(), {}, timeout, staged ? copy_in_host_memory : copy_between_devices);
  return run_threads<float>(task, team, world, [&](const RankGrid& held) {
    const cuda::Stream stream;
    GpuThreadLinks links(world, held, staged, stream.handle());
    return run_rank_on_gpu<T>(task, team, links, held.rank, stream.handle(), kernels);
  });
}

}  // namespace ring_attention::test
