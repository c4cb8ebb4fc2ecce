#include "ring_attention/ring/transports/staged.hpp"

namespace ring_attention {

void copy_between_devices(std::span<const std::byte> from, std::span<std::byte> to) {
  if (from.empty()) return;
  cuda::check(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDefault, cudaStreamPerThread));
  cuda::check(cudaStreamSynchronize(cudaStreamPerThread));
}

void SynchronizedTransport::start(const Hop& hop) {
  cuda::check(cudaStreamSynchronize(stream_));
  TransportAdapter::start(hop);
}

namespace {

std::span<std::byte> first(cuda::PinnedBuffer& buffer, std::size_t bytes) {
  return buffer.view().elements().first(bytes);
}

}  // namespace

void StagedTransport::start(const Hop& hop) {
  require(hop.send.size() <= send_.bytes() && hop.receive.size() <= receive_.bytes(),
          "StagedTransport: a parcel is larger than most_bytes");
  copied_.record(stream_);  // the sent parcel is complete, and no kernel reads the memory of the received one
  copied_.block(copies_.handle());
  cuda::copy<std::byte>(first(send_, hop.send.size()), hop.send, copies_.handle());
  copies_.synchronize();
  hop_ = hop;
  TransportAdapter::start({first(send_, hop.send.size()), first(receive_, hop.receive.size())});
}

void StagedTransport::finish() {
  TransportAdapter::finish();
  cuda::copy<std::byte>(hop_.receive, first(receive_, hop_.receive.size()), copies_.handle());
  copied_.record(copies_.handle());
  copied_.block(stream_);
}

void StagedTransport::drain() {
  TransportAdapter::drain();
  copies_.synchronize();
}

}  // namespace ring_attention
