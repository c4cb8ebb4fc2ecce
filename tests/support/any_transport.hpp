// Transports and all-to-alls behind virtual calls, so that the rings of the tests are compiled once and not once for every
// transport.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "ring_attention/parallel/all_to_all.hpp"
#include "ring_attention/ring/transport.hpp"

namespace ring_attention::test {

/// What any ring says of itself, also a wrong one.
class AnyRing : public Ring {
 public:
  template <class Like>
  explicit AnyRing(const Like& ring)
      : Ring{ring.rank, ring.size}, steps_(ring.steps()), gradient_hops_(ring.gradient_hops()) {
    for (int step = 0; step <= ring.size; ++step) owners_.push_back(ring.owner(step));
  }
  [[nodiscard]] int steps() const { return steps_; }
  [[nodiscard]] int gradient_hops() const { return gradient_hops_; }
  [[nodiscard]] int owner(int step) const { return owners_.at(static_cast<std::size_t>(step)); }

 private:
  int steps_, gradient_hops_;
  std::vector<int> owners_;
};

struct AnyTransport {
  virtual ~AnyTransport() = default;
  [[nodiscard]] virtual AnyRing ring() const = 0;
  [[nodiscard]] virtual TransportStatistics statistics() const = 0;
  virtual void start(const Exchange& exchange) = 0;
  virtual void progress() = 0;
  virtual void finish() = 0;
  virtual void drain() = 0;
};
static_assert(Transport<AnyTransport>);

/// Makes the transport of a rank for a channel.
using MakeTransport = std::function<std::unique_ptr<AnyTransport>(int channel)>;

/// A transport of type Link.
template <class Link>
struct HeldTransport final : AnyTransport {
  template <class... Arguments>
  explicit HeldTransport(Arguments&&... arguments) : link(std::forward<Arguments>(arguments)...) {}
  [[nodiscard]] AnyRing ring() const override { return AnyRing(link.ring()); }
  [[nodiscard]] TransportStatistics statistics() const override { return link.statistics(); }
  void start(const Exchange& exchange) override { link.start(exchange); }
  void progress() override { link.progress(); }
  void finish() override { link.finish(); }
  void drain() override { link.drain(); }
  Link link;
};

/// A transport of type Link, made of these arguments.
template <class Link, class... Arguments>
std::unique_ptr<AnyTransport> any_transport(Arguments&&... arguments) {
  return std::make_unique<HeldTransport<Link>>(std::forward<Arguments>(arguments)...);
}

struct AnyAllToAll {
  virtual ~AnyAllToAll() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  [[nodiscard]] virtual const TransportStatistics& statistics() const = 0;
  virtual void exchange(const Pieces& pieces) = 0;
};
static_assert(AllToAll<AnyAllToAll>);

/// An all-to-all of type Link.
template <class Link>
struct Any final : AnyAllToAll {
  template <class... Arguments>
  explicit Any(Arguments&&... arguments) : link(std::forward<Arguments>(arguments)...) {}
  [[nodiscard]] int rank() const override { return link.rank(); }
  [[nodiscard]] int size() const override { return link.size(); }
  [[nodiscard]] const TransportStatistics& statistics() const override { return link.statistics(); }
  void exchange(const Pieces& pieces) override { link.exchange(pieces); }
  Link link;
};

}  // namespace ring_attention::test
