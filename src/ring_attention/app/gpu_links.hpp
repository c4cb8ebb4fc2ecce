/// \file
/// The two rings between GPUs that a run can choose from: each makes links for its channels.
#pragma once

#include <chrono>

#include "ring_attention/app/table.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/ring/activity.hpp"
#include "ring_attention/ring/device_ring.hpp"
#include "ring_attention/ring/overlapped_ring.hpp"
#include "ring_attention/ring/own_gpu.hpp"
#ifdef RING_ATTENTION_HAS_NCCL
#include "ring_attention/ring/nccl_ring.hpp"
#endif

namespace ring_attention {

/// All ranks end together when one of them cannot have so many bytes on its GPU. Collective.
inline void require_gpu_memory(const Communicator& comm, const GpuShare& share, Index bytes) {
  agree(comm, [&] {
    const Index free = cuda::free_bytes() / share.ranks();
    if (bytes > free)
      throw InputError("rank " + std::to_string(comm.rank()) + " needs " + human_bytes(bytes) +
                       " on its GPU and can have " + human_bytes(free) +
                       ": use more GPUs, --type bf16, or a shorter sequence");
  });
}

/// What the links of a rank are made for.
struct LinkNeeds {
  const Communicator& comm;
  const GpuShare& share;
  double timeout;  ///< seconds
  Activity& activity;
  cuda::StreamHandle stream;  ///< of the engine
  std::size_t most_bytes;     ///< of the largest parcel
};

/// Through the memory of the hosts, with MPI.
class StagedLinks {
 public:
  static constexpr const char* name = "staged";
  /// Multiprocessors that communication takes.
  static int spared(const Communicator&) { return 0; }

  explicit StagedLinks(const LinkNeeds& needs) : needs_(needs) {}

  [[nodiscard]] StagedRing<OverlappedRing> link(int channel) const {
    return StagedRing<OverlappedRing>(needs_.stream, needs_.most_bytes, needs_.comm, channel);
  }

 private:
  LinkNeeds needs_;
};

#ifdef RING_ATTENTION_HAS_NCCL
/// From GPU to GPU.
class NcclLinks {
 public:
  static constexpr const char* name = "nccl";
  static int spared(const Communicator& comm) { return comm.size() > 1 ? most_spared : 0; }

  explicit NcclLinks(const LinkNeeds& needs)
      : world_(needs.comm, {most_spared, std::chrono::duration<double>(needs.timeout),
                            [&activity = needs.activity] { activity.beat(); }, needs.share.anywhere()}),
        stream_(needs.stream) {}

  [[nodiscard]] NcclRing link(int) { return NcclRing(world_, stream_); }

 private:
  static constexpr int most_spared = 8;

  NcclWorld world_;
  cuda::StreamHandle stream_;
};
#endif

}  // namespace ring_attention
