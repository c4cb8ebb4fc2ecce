/// \file
/// Transports of the host that carry device memory: for tests, and where there is no NCCL.
#pragma once

#include "ring_attention/cuda/device_tensor.hpp"
#include "ring_attention/cuda/stream.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention {

/// Copies bytes between any two memories and waits until they are there: what LoopbackWorld does a hop with when the
/// parcels of its ranks are in device memory, of one GPU or of several (a copy from peer to peer).
void copy_between_devices(std::span<const std::byte> from, std::span<std::byte> to);

/// A transport that moves device memory by itself, once the work that made it is done: LoopbackTransport over a world that
/// copies with copy_between_devices, or a GPU-aware MPI. start() waits for the stream.
template <class Link>
class SynchronizedTransport {
 public:
  /// \param stream  of the engine
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
  Link transport_;
};

/// Device memory through pinned memory of the host, over a transport that moves host memory: OverlappedTransport, say.
///
///     start:   device -> pinned    as soon as what was enqueued before is done; the host waits; then transport.start()
///     finish:  transport.finish(); pinned -> device, before what is enqueued from here on
///
/// The copies have a stream of their own: the kernel of a step runs while its parcel travels. Memory: two parcels,
/// pinned.
template <class Link>
class StagedTransport {
 public:
  /// \param stream  of the engine
  /// \param most_bytes  of the largest parcel
  template <class... Arguments>
  StagedTransport(cuda::StreamHandle stream, std::size_t most_bytes, Arguments&&... arguments)
      : stream_(stream),
        send_(most_bytes),
        receive_(most_bytes),
        transport_(std::forward<Arguments>(arguments)...) {}

  [[nodiscard]] Ring ring() const { return transport_.ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return transport_.statistics(); }

  void start(const Exchange& exchange) {
    require(exchange.send.size() <= send_.size() && exchange.receive.size() <= receive_.size(),
            "StagedTransport: a parcel larger than the largest");
    arrived_.record(stream_);  // what is sent is complete, and nobody reads what is received over
    arrived_.block(copies_.handle());
    cuda::copy<std::byte>(send_.first(exchange.send.size()), exchange.send, copies_.handle());
    copies_.synchronize();
    exchange_ = exchange;
    transport_.start({send_.first(exchange.send.size()), receive_.first(exchange.receive.size())});
  }
  void progress() { transport_.progress(); }
  void finish() {
    transport_.finish();
    cuda::copy<std::byte>(exchange_.receive, receive_.first(exchange_.receive.size()), copies_.handle());
    arrived_.record(copies_.handle());
    arrived_.block(stream_);
  }
  void drain() {
    transport_.drain();
    copies_.synchronize();
  }

 private:
  cuda::StreamHandle stream_;
  cuda::Stream copies_;
  cuda::Event arrived_;
  cuda::PinnedBuffer send_, receive_;
  Exchange exchange_;
  Link transport_;
};

}  // namespace ring_attention
