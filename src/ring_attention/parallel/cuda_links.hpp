/// \file
/// `CudaLinks`: the links of a rank between arrays in the memory of GPUs: NCCL, or through the host.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ring_attention/cuda/kernels.hpp"
#include "ring_attention/parallel/mpi_links.hpp"

namespace ring_attention {

class NcclWorld;

struct CudaLinkOptions {
  bool nccl = true;                           ///< else everything moves through pinned memory of the host
  std::chrono::duration<double> timeout{60};  ///< of NCCL, for one hop: NcclOptions::timeout
  std::function<void()> alive = {};           ///< called while the host waits for the GPU
  bool share_gpu = false;                     ///< NcclOptions::share_gpu
  bool enqueues = false;                      ///< NcclOptions::enqueues
};

/// Multiprocessors that a transfer of NCCL may use, and that kernels leave free meanwhile.
inline constexpr int nccl_sms = 8;

class CudaLinks : public Links {
 public:
  /// Collective over the ranks of the links.
  /// \param host     between the same ranks: moves the arrays, or the ids of NCCL's communicators
  /// \param compute  the stream of the rank's kernels, which outlives this object
  /// \throws AgreedError if NCCL cannot be used, Error if this build has none
  CudaLinks(std::unique_ptr<Links> host, cuda::StreamHandle compute, CudaLinkOptions options);
  /// Over MPI. \param world  outlives this object
  CudaLinks(const Communicator& world, const Axis& ulysses, const Axis& ring, cuda::StreamHandle compute,
            CudaLinkOptions options)
      : CudaLinks(std::make_unique<MpiLinks>(world, ulysses, ring), compute, std::move(options)) {}
  ~CudaLinks() override;

  [[nodiscard]] std::unique_ptr<Transport> transport(Channel channel, std::size_t most_bytes) override;
  [[nodiscard]] AllToAll& ring() override { return *ring_; }
  [[nodiscard]] AllToAll& ulysses() override { return *ulysses_; }
  [[nodiscard]] std::unique_ptr<AllToAll> group(const Axis& axis) override {
    return between_gpus(host_->group(axis));
  }

  /// Does not wait. \returns true if no message of an enqueued call is under way
  /// \throws Error as NcclWorld::poll(), after it has aborted all communicators
  bool poll();

 private:
  /// Between the GPUs of the ranks of `host`.
  [[nodiscard]] std::unique_ptr<AllToAll> between_gpus(std::unique_ptr<AllToAll> host);

  std::unique_ptr<Links> host_;
  cuda::StreamHandle compute_;
  CudaLinkOptions options_;
  std::vector<std::shared_ptr<NcclWorld>> nccl_worlds_;  // the first one is the ring's
  std::unique_ptr<AllToAll> ring_, ulysses_;
};

}  // namespace ring_attention
