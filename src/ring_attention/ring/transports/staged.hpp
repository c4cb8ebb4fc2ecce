/// \file
/// Transports that move device memory by means of the host: for tests, and for machines without NCCL.
#pragma once

#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/stream.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// Copies bytes between any two memories and waits until the copy is done. LoopbackWorld uses it for a hop if the
/// parcels of its ranks are in device memory, of one GPU or of several (a peer-to-peer copy).
void copy_between_devices(std::span<const std::byte> from, std::span<std::byte> to);

/// Adapts a transport that can read and write device memory: LoopbackTransport with copy_between_devices, or GPU-aware
/// MPI. start() waits for the stream, so that the parcel is complete before it is sent.
template <class Base>
class SynchronizedTransport {
 public:
  /// \param stream  the engine's stream
  template <class... Arguments>
  explicit SynchronizedTransport(cuda::StreamHandle stream, Arguments&&... arguments)
      : stream_(stream), transport_(std::forward<Arguments>(arguments)...) {}

  [[nodiscard]] Ring ring() const { return transport_.ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return transport_.statistics(); }

  void start(const Exchange& exchange) {
    cuda::check(cudaStreamSynchronize(stream_));
    transport_.start(exchange);
  }
  void progress() { transport_.progress(); }
  void finish() { transport_.finish(); }
  void drain() { transport_.drain(); }

 private:
  cuda::StreamHandle stream_;
  Base transport_;
};

/// Moves device memory through pinned host memory, with a transport that moves host memory, for example
/// OverlappedTransport.
///
///     start:   device -> pinned after the work that is already on the stream; the host waits; then transport.start()
///     finish:  transport.finish(); pinned -> device, before work that is enqueued later
///
/// The copies have their own stream, so the kernel of a step runs while its parcel travels. Memory: two pinned parcels.
template <class Base>
class StagedTransport {
 public:
  /// \param stream  the engine's stream
  /// \param most_bytes  of the largest parcel
  template <class... Arguments>
  StagedTransport(cuda::StreamHandle stream, std::size_t most_bytes, Arguments&&... arguments)
      : stream_(stream),
        send_({1, 1, 1, static_cast<Index>(most_bytes)}),
        receive_(send_.shape()),
        transport_(std::forward<Arguments>(arguments)...) {}

  [[nodiscard]] Ring ring() const { return transport_.ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return transport_.statistics(); }

  void start(const Exchange& exchange) {
    require(exchange.send.size() <= send_.bytes() && exchange.receive.size() <= receive_.bytes(),
            "StagedTransport: a parcel is larger than most_bytes");
    copied_.record(
        stream_);  // the sent parcel is complete, and no kernel reads the memory of the received one
    copied_.block(copies_.handle());
    cuda::copy<std::byte>(first(send_, exchange.send.size()), exchange.send, copies_.handle());
    copies_.synchronize();
    exchange_ = exchange;
    transport_.start({first(send_, exchange.send.size()), first(receive_, exchange.receive.size())});
  }
  void progress() { transport_.progress(); }
  void finish() {
    transport_.finish();
    cuda::copy<std::byte>(exchange_.receive, first(receive_, exchange_.receive.size()), copies_.handle());
    copied_.record(copies_.handle());
    copied_.block(stream_);
  }
  void drain() {
    transport_.drain();
    copies_.synchronize();
  }

 private:
  static std::span<std::byte> first(cuda::PinnedBuffer& buffer, std::size_t bytes) {
    return buffer.view().elements().first(bytes);
  }

  cuda::StreamHandle stream_;
  cuda::Stream copies_;
  cuda::Event copied_;
  cuda::PinnedBuffer send_, receive_;
  Exchange exchange_;
  Base transport_;
};

}  // namespace ring_attention
