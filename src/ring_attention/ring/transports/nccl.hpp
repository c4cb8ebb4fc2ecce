/// \file
/// `NcclTransport`: sends device memory from GPU to GPU with NCCL while the GPU computes.
///
/// The host does not wait in the loop of the ring. It enqueues all steps, and drain() waits for them, or leaves that to
/// NcclWorld::wait(). Two streams and two events per hop keep the order on the device:
///
///     compute  ──[ step t-1 ]──●ready──────────[ step t ]──────────◌ waits ──[ step t+1 ]
///                               └─▶ waits                          │
///     comm     ───────────────────[ send current, receive next ]──●arrived
///
/// Transfers are enqueued before the kernel of their step, on a stream with high priority. They use up to `max_ctas`
/// thread blocks, for which the engine's kernels leave multiprocessors free (CudaOptions::reserved_sms).
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ring_attention/cuda/stream.hpp"
#include "ring_attention/mpi/communicator.hpp"
#include "ring_attention/ring/transports/pending_hop.hpp"

struct ncclComm;

namespace ring_attention {

struct NcclOptions {
  int max_ctas = 8;  ///< multiprocessors that a transfer may use
  /// For one hop, from when this rank is ready for it until it has arrived. The previous rank may still compute then.
  std::chrono::duration<double> timeout{60};
  std::function<void()> moved =
      {};  ///< called after every hop that the host has waited for, to report progress
  bool enqueues =
      false;  ///< transports and all-to-alls do not wait: wait() waits for all that they have enqueued
  /// Lets several ranks share one GPU, which NCCL does not support: each process gets another host id, so that NCCL
  /// treats it as another machine. Only for trying out: messages use the loopback network. Sets NCCL_HOSTID and other
  /// variables of this process.
  bool share_gpu = false;
};

/// A transfer on the stream of an NcclWorld, between work of the compute stream.
struct NcclHop {
  cuda::Event ready, arrived;
  cuda::Event idle, resumed;  // on the compute stream, before and after its wait
};

/// An NCCL communicator with the ranks of `comm`, which may be a part of the job, on each rank's current GPU. On a rank that
/// is in two of them, messages of the second one begin when those of the first one are done.
class NcclWorld {
 public:
  /// Collective. \throws AgreedError if NCCL cannot be loaded or finds no network, Error on a rank on which NCCL fails,
  /// or whose peers do not connect in time
  NcclWorld(const Communicator& comm, NcclOptions options = {});
  /// For the ranks of a ring, also without MPI. Collective, with the same errors.
  /// \param broadcast  gives the text of rank 0 to all of them
  NcclWorld(const Ring& ring, const std::function<void(std::string&)>& broadcast, NcclOptions options);
  /// After an error or during an exception it aborts the communicator, because the other ranks would not take part in a
  /// regular end.
  ~NcclWorld();

  [[nodiscard]] Ring ring() const { return ring_; }
  [[nodiscard]] const NcclOptions& options() const { return options_; }
  /// The stream of all transfers of all channels. Every rank enqueues them in the same order.
  [[nodiscard]] cuda::StreamHandle stream() const { return stream_.handle(); }

  /// Enqueues one hop. Empty parcels are not sent: both ranks know their length.
  void shift(const Hop& hop);
  /// Enqueues messages to all other ranks and from them, as one group: piece i of `to` goes to rank i, piece i of
  /// `from` comes from it. Empty pieces are not sent, and the rank's own pieces are ignored.
  void all_to_all(const std::vector<std::span<const std::byte>>& to,
                  const std::vector<std::span<std::byte>>& from);
  /// The host waits until the hop is done. The time-out is for the messages: the clock stands while this rank computes.
  /// \throws Error with `what`, after it has aborted the communicator, if NCCL fails or the time-out is over
  void wait(const NcclHop& hop, const std::string& what);

  /// Called where the world enqueues: the hop is under way.
  void enqueued(NcclHop&& hop) { under_way_.push_back(std::move(hop)); }
  /// Forgets the hops that are done, and does not wait. \returns true if none is left
  /// \throws Error, after it has aborted the communicator, if NCCL has failed, or the oldest hop takes longer than the time-out;
  /// the same again after an abort
  bool poll();
  /// Aborts the communicator, if that has not been done.
  void end(const std::string& why) noexcept;

 private:
  class Group;  // of sends and receives
  /// Enqueues the messages that `messages` adds to a group.
  void enqueue(const std::string& what, const std::function<void(Group&)>& messages);
  /// \throws Error, after it has aborted the communicator, if NCCL has reported an asynchronous error
  void require_alive();
  /// Aborts the communicator and throws Error.
  [[noreturn]] void abort(const std::string& why);
  /// abort(): `what` has taken longer than the time-out.
  [[noreturn]] void abort_late(const std::string& what);
  /// Waits until NCCL has completed its last call: calls of a non-blocking communicator return at once.
  void settle(const std::string& what);

  Ring ring_;
  NcclOptions options_;
  cuda::Stream stream_;
  ncclComm* comm_ = nullptr;  // null in a ring of one, and after an abort
  std::string failure_;       // of the abort
  int exceptions_;            // std::uncaught_exceptions() at construction
  std::deque<NcclHop> under_way_;
  std::optional<std::chrono::steady_clock::time_point>
      oldest_since_;  // when it was first seen to wait for a message
};

/// One channel of parcels. `compute` is the engine's stream.
class NcclTransport : public Transport {
 public:
  NcclTransport(NcclWorld& world, cuda::StreamHandle compute) : world_(world), compute_(compute) {}

  [[nodiscard]] Ring ring() const override { return world_.ring(); }
  /// Complete after drain().
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }

  void start(const Hop& hop) override;
  void finish() override;
  /// Waits for all hops, unless the world enqueues. \throws Error with the hop, after it has aborted the communicator, if
  /// NCCL fails or a hop takes longer than the time-out
  void drain() override;

 private:
  NcclWorld& world_;
  cuda::StreamHandle compute_;
  std::vector<NcclHop> hops_;
  PendingHop pending_;
  TransportStatistics statistics_;
};

}  // namespace ring_attention
