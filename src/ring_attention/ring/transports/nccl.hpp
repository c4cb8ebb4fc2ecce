/// \file
/// `NcclTransport`: device memory from GPU to GPU with NCCL, while the GPU computes and the host runs ahead.
///
/// The host waits nowhere in the ring's loop: it enqueues all steps and then watches them from drain(). Two streams
/// and two events a hop keep the order on the device:
///
///     compute  ──[ step t-1 ]──●ready──────────[ step t ]──────────◌ waits ──[ step t+1 ]
///                               └─▶ waits                          │
///     comm     ───────────────────[ send current, receive next ]──●arrived
///
/// Transfers are enqueued before the kernel of their step, on a stream of high priority, and use a few thread blocks
/// (`max_ctas`) that the engine's kernel leaves them.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

#include "ring_attention/cuda/stream.hpp"
#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/ring/transport.hpp"

struct ncclComm;

namespace ring_attention {

struct NcclOptions {
  int max_ctas = 8;                           ///< multiprocessors that a transfer may take
  std::chrono::duration<double> timeout{60};  ///< for one hop, with the step that it waits for
  std::function<void()> moved = {};           ///< called by drain() after every hop: a sign of life
  /// Several ranks share one GPU, which NCCL refuses: make it believe that each process is a machine of its own. For
  /// trying out: messages go over the loopback network. Sets NCCL_HOSTID and the like for this process.
  bool share_gpu = false;
};

/// A NCCL communicator of the same ranks as `comm`, on each rank's current GPU.
class NcclWorld {
 public:
  /// Collective. \throws AgreedError when NCCL cannot be loaded or finds no network, Error on a rank that NCCL refuses, or
  /// whose peers do not come in time
  NcclWorld(const Communicator& comm, NcclOptions options = {});
  NcclWorld(const NcclWorld&) = delete;
  NcclWorld& operator=(const NcclWorld&) = delete;
  /// After an error, or while an exception is on its way, the communicator is aborted: no rank would hear of it.
  ~NcclWorld();

  [[nodiscard]] Ring ring() const { return ring_; }
  [[nodiscard]] const NcclOptions& options() const { return options_; }
  /// What all transfers are enqueued on, of all channels: every rank enqueues them in one order.
  [[nodiscard]] cuda::StreamHandle stream() const { return stream_.handle(); }

  /// Enqueues one hop. Empty parcels do not travel: both ends know their length.
  void shift(const Exchange& exchange);
  /// \throws Error, after it has aborted the communicator, when NCCL has failed since
  void require_alive();
  /// Aborts the communicator and throws Error.
  [[noreturn]] void abort(const std::string& why);

 private:
  /// Waits until NCCL has done what it was asked: its calls return at once.
  void settle(const char* what);

  Ring ring_;
  NcclOptions options_;
  cuda::Stream stream_;
  ncclComm* comm_ = nullptr;  // null: a ring of one, or aborted
  int exceptions_;            // on their way when it was made
};

/// One channel of parcels. The engine computes on `compute`.
class NcclTransport {
 public:
  NcclTransport(NcclWorld& world, cuda::StreamHandle compute) : world_(world), compute_(compute) {}
  NcclTransport(const NcclTransport&) = delete;
  NcclTransport& operator=(const NcclTransport&) = delete;

  [[nodiscard]] Ring ring() const { return world_.ring(); }
  /// Complete after drain().
  [[nodiscard]] const TransportStatistics& statistics() const { return statistics_; }

  void start(const Exchange& exchange);
  void progress() {}
  void finish();
  /// Waits for all hops. \throws Error naming the hop, when NCCL failed or a hop takes longer than the time-out; then
  /// the communicator is aborted
  void drain();

 private:
  struct Hop {
    cuda::Event ready, arrived;
    cuda::Event idle, resumed;  // on the compute stream, before and after it waits
  };

  NcclWorld& world_;
  cuda::StreamHandle compute_;
  std::vector<Hop> hops_;
  PendingExchange pending_;
  TransportStatistics statistics_;
};

static_assert(Transport<NcclTransport>);

}  // namespace ring_attention
