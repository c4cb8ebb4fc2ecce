#include "ring_attention/parallel/observed_links.hpp"

#include <utility>

#include "ring_attention/ring/transports/adapter.hpp"

namespace ring_attention {
namespace {

class ObservedTransport : public TransportAdapter {
 public:
  ObservedTransport(std::unique_ptr<Transport> transport, LinkObserver& observer, Channel channel)
      : TransportAdapter(std::move(transport)), observer_(observer), channel_(channel) {
    observer_.opens(channel_);
  }

  void progress() override {
    observer_.computes();
    TransportAdapter::progress();
  }
  void finish() override {
    observer_.waits(channel_, ring().prev());
    TransportAdapter::finish();
    observer_.arrived(channel_);
  }
  void drain() override {
    observer_.drains(channel_);
    TransportAdapter::drain();
  }

 private:
  LinkObserver& observer_;
  Channel channel_;
};

class ObservedAllToAll : public AllToAllAdapter {
 public:
  ObservedAllToAll(AllToAll& group, LinkObserver& observer) : AllToAllAdapter(group), observer_(observer) {}
  ObservedAllToAll(std::unique_ptr<AllToAll> group, LinkObserver& observer)
      : AllToAllAdapter(*group), own_(std::move(group)), observer_(observer) {}

  void exchange(const Pieces& pieces) override {
    observer_.exchanges();
    AllToAllAdapter::exchange(pieces);
    observer_.exchanged();
  }

 private:
  std::unique_ptr<AllToAll> own_;
  LinkObserver& observer_;
};

}  // namespace

std::unique_ptr<Transport> observed(std::unique_ptr<Transport> transport, LinkObserver& observer,
                                    Channel channel) {
  return std::make_unique<ObservedTransport>(std::move(transport), observer, channel);
}

ObservedLinks::ObservedLinks(Links& links, LinkObserver& observer)
    : links_(links),
      observer_(observer),
      ring_(std::make_unique<ObservedAllToAll>(links.ring(), observer)),
      ulysses_(std::make_unique<ObservedAllToAll>(links.ulysses(), observer)) {}

std::unique_ptr<Transport> ObservedLinks::transport(Channel channel, std::size_t most_bytes) {
  return observed(links_.transport(channel, most_bytes), observer_, channel);
}

void ObservedLinks::progress() {
  observer_.computes();
  links_.progress();
}

std::unique_ptr<AllToAll> ObservedLinks::group(const Axis& axis) {
  return std::make_unique<ObservedAllToAll>(links_.group(axis), observer_);
}

}  // namespace ring_attention
