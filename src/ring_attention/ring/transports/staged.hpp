/// \file
/// Transports that move device memory by means of the host: for tests, and for machines without NCCL.
#pragma once

#include <memory>
#include <utility>

#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/stream.hpp"
#include "ring_attention/ring/transports/adapter.hpp"

namespace ring_attention {

/// Copies bytes between any two memories and waits until the copy is done. LoopbackWorld uses it for a hop if the
/// parcels of its ranks are in device memory, of one GPU or of several (a peer-to-peer copy).
void copy_between_devices(std::span<const std::byte> from, std::span<std::byte> to);

/// Adapts a transport that can read and write device memory: LoopbackTransport with copy_between_devices, or GPU-aware
/// MPI. start() waits for the stream, so that the parcel is complete before it is sent.
class SynchronizedTransport : public TransportAdapter {
 public:
  /// \param stream  the engine's stream
  SynchronizedTransport(cuda::StreamHandle stream, std::unique_ptr<Transport> transport)
      : TransportAdapter(std::move(transport)), stream_(stream) {}

  void start(const Hop& hop) override;

 private:
  cuda::StreamHandle stream_;
};

/// Moves device memory through pinned host memory, with a transport that moves host memory, for example
/// OverlappedTransport.
///
///     start:   device -> pinned after the work that is already on the stream; the host waits; then transport.start()
///     finish:  transport.finish(); pinned -> device, before work that is enqueued later
///
/// The copies have their own stream, so the kernel of a step runs while its parcel travels. Memory: two pinned parcels.
class StagedTransport : public TransportAdapter {
 public:
  /// \param stream  the engine's stream
  /// \param most_bytes  of the largest parcel
  StagedTransport(cuda::StreamHandle stream, std::size_t most_bytes, std::unique_ptr<Transport> transport)
      : TransportAdapter(std::move(transport)),
        stream_(stream),
        send_({1, 1, 1, static_cast<Index>(most_bytes)}),
        receive_(send_.shape()) {}

  void start(const Hop& hop) override;
  void finish() override;
  void drain() override;

 private:
  cuda::StreamHandle stream_;
  cuda::Stream copies_;
  cuda::Event copied_;
  cuda::PinnedBuffer send_, receive_;
  Hop hop_;
};

}  // namespace ring_attention
