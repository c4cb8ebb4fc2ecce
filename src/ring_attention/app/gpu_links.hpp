/// \file
/// The two rings between GPUs that a run can choose from: each makes links for its channels.
#pragma once

#include <algorithm>
#include <chrono>

#include "ring_attention/app/table.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/ring/activity.hpp"
#include "ring_attention/ring/device_ring.hpp"
#include "ring_attention/ring/overlapped_ring.hpp"
#ifdef RING_ATTENTION_HAS_NCCL
#include "ring_attention/ring/nccl_ring.hpp"
#endif

namespace ring_attention {

/// How many ranks of this machine use one GPU, at most.
class GpuShare {
 public:
  explicit GpuShare(const Communicator& comm) {
    const int devices = cuda::device_count(), here = ranks_on_this_host(comm);
    ranks_ = (here + devices - 1) / devices;
    anywhere_ = max_over_ranks(comm, ranks_) > 1;
  }
  /// All ranks end together when one of them cannot have so many bytes on its GPU. Collective.
  void require_memory(const Communicator& comm, Index bytes) const {
    agree(comm, [&] {
      const Index free = cuda::free_bytes() / ranks_;
      if (bytes > free)
        throw InputError("rank " + std::to_string(comm.rank()) + " needs " + human_bytes(bytes) +
                         " on its GPU and can have " + human_bytes(free) +
                         ": use more GPUs, --type bf16, or a shorter sequence");
    });
  }
  /// On any machine of the job.
  [[nodiscard]] bool shares_gpu() const { return anywhere_; }

 private:
  int ranks_ = 1;
  bool anywhere_ = false;
};

/// Through the memory of the hosts, with MPI.
class StagedLinks : public GpuShare {
 public:
  static constexpr const char* name = "staged";
  static constexpr int multiprocessors = 0;  // that communication takes

  StagedLinks(const Communicator& comm, std::chrono::duration<double>, Activity&, std::size_t most_bytes,
              cuda::StreamHandle stream)
      : GpuShare(comm), comm_(comm), most_bytes_(most_bytes), stream_(stream) {}

  [[nodiscard]] StagedRing<OverlappedRing> link(int channel) const {
    return StagedRing<OverlappedRing>(stream_, most_bytes_, comm_, channel);
  }

 private:
  const Communicator& comm_;
  std::size_t most_bytes_;
  cuda::StreamHandle stream_;
};

#ifdef RING_ATTENTION_HAS_NCCL
/// From GPU to GPU.
class NcclLinks : public GpuShare {
 public:
  static constexpr const char* name = "nccl";
  static constexpr int multiprocessors = 8;

  NcclLinks(const Communicator& comm, std::chrono::duration<double> timeout, Activity& activity, std::size_t,
            cuda::StreamHandle stream)
      : GpuShare(comm),
        world_(comm, {multiprocessors, timeout, [&] { activity.beat(); }, shares_gpu()}),
        stream_(stream) {}

  [[nodiscard]] NcclRing link(int) { return NcclRing(world_, stream_); }

 private:
  NcclWorld world_;
  cuda::StreamHandle stream_;
};
#endif

}  // namespace ring_attention
