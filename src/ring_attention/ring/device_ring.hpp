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

/// A link that moves device memory by itself, once the work that made it is done: LoopbackRing over a world that
/// copies with copy_between_devices, or a GPU-aware MPI. start() waits for the stream.
template <class Link>
class SynchronizedRing {
 public:
  /// \param stream  of the engine
  template <class... Arguments>
  explicit SynchronizedRing(cuda::StreamHandle stream, Arguments&&... arguments)
      : stream_(stream), link_(std::forward<Arguments>(arguments)...) {}

  [[nodiscard]] Ring ring() const { return link_.ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return link_.statistics(); }

  void start(const Exchange& exchange) {
    cuda::check(cudaStreamSynchronize(stream_));
    link_.start(exchange);
  }
  void progress() { link_.progress(); }
  void computed() { link_.computed(); }
  void finish() { link_.finish(); }
  void drain() { link_.drain(); }

 private:
  cuda::StreamHandle stream_;
  Link link_;
};

/// Device memory through pinned memory of the host, over a link that moves host memory: OverlappedRing, say.
///
///     start:   device -> pinned    as soon as what was enqueued before is done; the host waits; then link.start()
///     finish:  link.finish(); pinned -> device, before what is enqueued from here on
///
/// The copies have a stream of their own: the kernel of a step runs while its parcel travels. Memory: two parcels,
/// pinned.
template <class Link>
class StagedRing {
 public:
  /// \param stream  of the engine
  /// \param most_bytes  of the largest parcel
  template <class... Arguments>
  StagedRing(cuda::StreamHandle stream, std::size_t most_bytes, Arguments&&... arguments)
      : stream_(stream),
        send_(most_bytes),
        receive_(most_bytes),
        link_(std::forward<Arguments>(arguments)...) {}

  [[nodiscard]] Ring ring() const { return link_.ring(); }
  [[nodiscard]] const TransportStatistics& statistics() const { return link_.statistics(); }

  void start(const Exchange& exchange) {
    require(exchange.send.size() <= send_.size() && exchange.receive.size() <= receive_.size(),
            "StagedRing: a parcel larger than the largest");
    arrived_.record(stream_);  // what is sent is complete, and nobody reads what is received over
    arrived_.hold(copies_.handle());
    cuda::copy<std::byte>(send_.first(exchange.send.size()), exchange.send, copies_.handle());
    copies_.wait();
    exchange_ = exchange;
    link_.start({send_.first(exchange.send.size()), receive_.first(exchange.receive.size())});
  }
  void progress() { link_.progress(); }
  void computed() { link_.computed(); }
  void finish() {
    link_.finish();
    cuda::copy<std::byte>(exchange_.receive, receive_.first(exchange_.receive.size()), copies_.handle());
    arrived_.record(copies_.handle());
    arrived_.hold(stream_);
  }
  void drain() {
    link_.drain();
    copies_.wait();
  }

 private:
  cuda::StreamHandle stream_;
  cuda::Stream copies_;
  cuda::Event arrived_;
  cuda::PinnedBuffer send_, receive_;
  Exchange exchange_;
  Link link_;
};

}  // namespace ring_attention
