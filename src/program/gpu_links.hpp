/// \file
/// The two rings between GPUs that a run can choose from: each makes transports for its channels.
#pragma once

#include <chrono>

#include "cli/own_gpu.hpp"
#include "cli/table.hpp"
#include "program/activity.hpp"
#include "ring_attention/cuda/device.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"
#include "ring_attention/ring/transports/staged.hpp"
#ifdef RING_ATTENTION_HAS_NCCL
#include "ring_attention/ring/transports/nccl.hpp"
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

/// What the transports of a rank are made for.
struct TransportNeeds {
  const Communicator& comm;
  const GpuShare& share;
  double timeout;  ///< seconds
  Activity& activity;
  cuda::StreamHandle stream;  ///< of the engine
  std::size_t most_bytes;     ///< of the largest parcel
};

/// Through the memory of the hosts, with MPI.
class StagedTransports {
 public:
  static constexpr const char* name = "staged";
  /// Multiprocessors that communication takes.
  static int reserved_sms(const Communicator&) { return 0; }

  explicit StagedTransports(const TransportNeeds& needs) : needs_(needs) {}

  [[nodiscard]] StagedTransport<OverlappedTransport> transport(int channel) const {
    return StagedTransport<OverlappedTransport>(needs_.stream, needs_.most_bytes, needs_.comm, channel);
  }

 private:
  TransportNeeds needs_;
};

#ifdef RING_ATTENTION_HAS_NCCL
/// From GPU to GPU.
class NcclTransports {
 public:
  static constexpr const char* name = "nccl";
  static int reserved_sms(const Communicator& comm) { return comm.size() > 1 ? max_reserved_sms : 0; }

  explicit NcclTransports(const TransportNeeds& needs)
      : world_(needs.comm, {max_reserved_sms, std::chrono::duration<double>(needs.timeout),
                            [&activity = needs.activity] { activity.beat(); }, needs.share.anywhere()}),
        stream_(needs.stream) {}

  [[nodiscard]] NcclTransport transport(int) { return NcclTransport(world_, stream_); }

 private:
  static constexpr int max_reserved_sms = 8;

  NcclWorld world_;
  cuda::StreamHandle stream_;
};
#endif

}  // namespace ring_attention
