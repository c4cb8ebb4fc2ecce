#include "ring_attention/parallel/mpi_links.hpp"

#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention {

MpiLinks::MpiLinks(const Communicator& world, const Axis& ulysses, const Axis& ring, TransportKind kind)
    : world_(world), kind_(kind), ring_(world, ring), ulysses_(MpiLinks::group(ulysses)) {}

std::unique_ptr<Transport> MpiLinks::transport(Channel channel, std::size_t) {
  const auto tag = static_cast<int>(channel);
  if (kind_ == TransportKind::odd_even) return std::make_unique<OddEvenTransport>(ring_.communicator(), tag);
  return std::make_unique<OverlappedTransport>(ring_.communicator(), tag);
}

std::unique_ptr<AllToAll> MpiLinks::group(const Axis& axis) {
  if (axis.size == 1) return std::make_unique<OneRank>();
  return std::make_unique<MpiAllToAll>(world_, axis);
}

}  // namespace ring_attention
