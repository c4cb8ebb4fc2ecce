#include "ring_attention/parallel/observer.hpp"

#include <utility>

#include "ring_attention/core/bf16.hpp"
#include "ring_attention/ring/transports/adapter.hpp"

namespace ring_attention {
namespace {

/// The seconds that some statistics have counted since the last call.
class Waited {
 public:
  double operator()(const TransportStatistics& all) {
    return all.exposed_seconds - std::exchange(before_, all.exposed_seconds);
  }

 private:
  double before_ = 0;
};

class ObservedTransport : public TransportAdapter {
 public:
  ObservedTransport(std::unique_ptr<Transport> transport, const Observers& by, Channel channel)
      : TransportAdapter(std::move(transport)), by_(by), hop_{channel, -1, TransportAdapter::ring(), {}} {
    tell(by_, &Observer::opens, channel);
  }

  void start(const Hop& hop) override {
    ++hop_.number;
    hop_.bytes = hop;
    tell(by_, &Observer::starts, hop_);
    TransportAdapter::start(hop);
  }
  void progress() override {
    tell(by_, &Observer::beats);
    TransportAdapter::progress();
  }
  void finish() override {
    tell(by_, &Observer::waits, hop_);
    TransportAdapter::finish();
    tell(by_, &Observer::arrived, hop_, waited_(statistics()));
  }
  void drain() override {
    tell(by_, &Observer::drains, hop_.channel);
    TransportAdapter::drain();
    tell(by_, &Observer::drained, hop_.channel, waited_(statistics()));
  }

 private:
  Observers by_;
  ObservedHop hop_;
  Waited waited_;
};

class ObservedAllToAll : public AllToAllAdapter {
 public:
  ObservedAllToAll(Group group, const Observers& by, PieceExchange::Along which, const Axis& axis)
      : AllToAllAdapter(*group), group_(std::move(group)), by_(by), which_(which), axis_(axis) {
    (void)waited_(statistics());
  }

  void all_to_all(const Pieces& pieces) override {
    const PieceExchange what{which_, axis_, rank(), pieces};
    tell(by_, &Observer::exchanges, what);
    AllToAllAdapter::all_to_all(pieces);
    tell(by_, &Observer::exchanged, what, waited_(statistics()));
  }

 private:
  Group group_;
  Observers by_;
  PieceExchange::Along which_;
  Axis axis_;
  Waited waited_;
};

/// \tparam Of  Engine<T> or BackwardEngine<T>
template <class Of>
class ObservedSteps : public Of {
 public:
  ObservedSteps(std::unique_ptr<Of> engine, const Observers& by, const Pass& pass)
      : engine_(std::move(engine)), by_(by) {
    tell(by_, &Observer::computes, pass);
  }
  [[nodiscard]] decltype(std::declval<Of>().finish()) finish() override {
    tell(by_, &Observer::begins, "finish");
    auto result = engine_->finish();
    tell(by_, &Observer::ends);
    return result;
  }

 protected:
  void step(const auto& kv, const auto&... more) {
    tell(by_, &Observer::step, step_++, kv.ranges);
    engine_->accumulate(kv, more...);
    tell(by_, &Observer::ends);
  }
  std::unique_ptr<Of> engine_;

 private:
  Observers by_;
  int step_ = 0;
};

template <class T>
struct ObservedEngine : ObservedSteps<Engine<T>> {
  using ObservedSteps<Engine<T>>::ObservedSteps;
  void accumulate(const KeyValue<T>& kv, const Progress& progress) override { this->step(kv, progress); }
};

template <class T>
struct ObservedBackward : ObservedSteps<BackwardEngine<T>> {
  using ObservedSteps<BackwardEngine<T>>::ObservedSteps;
  void accumulate(const KeyValue<T>& kv, const KeyValueGradient<SumOf<T>>& gradient,
                  const Progress& progress) override {
    this->step(kv, gradient, progress);
  }
  [[nodiscard]] TermGradients<SumOf<T>> term_gradients() override { return this->engine_->term_gradients(); }
};

}  // namespace

std::unique_ptr<Transport> observed(std::unique_ptr<Transport> transport, const Observers& by,
                                    Channel channel) {
  if (by.empty() || !transport) return transport;
  return std::make_unique<ObservedTransport>(std::move(transport), by, channel);
}

Group observed(Group group, const Observers& by, PieceExchange::Along which, const Axis& axis) {
  if (by.empty()) return group;
  return std::make_shared<ObservedAllToAll>(std::move(group), by, which, axis);
}

template <class T>
std::unique_ptr<Engine<T>> observed(std::unique_ptr<Engine<T>> engine, const Observers& by,
                                    const Pass& pass) {
  if (by.empty()) return engine;
  return std::make_unique<ObservedEngine<T>>(std::move(engine), by, pass);
}

template <class T>
std::unique_ptr<BackwardEngine<T>> observed(std::unique_ptr<BackwardEngine<T>> engine, const Observers& by,
                                            const Pass& pass) {
  if (by.empty()) return engine;
  return std::make_unique<ObservedBackward<T>>(std::move(engine), by, pass);
}

// NOLINTBEGIN(bugprone-macro-parentheses): T is a type
#define RING_ATTENTION_INSTANTIATE(T)                                                                        \
  template std::unique_ptr<Engine<T>> observed(std::unique_ptr<Engine<T>>, const Observers&, const Pass&);   \
  template std::unique_ptr<BackwardEngine<T>> observed(std::unique_ptr<BackwardEngine<T>>, const Observers&, \
                                                       const Pass&);
RING_ATTENTION_INSTANTIATE(float)
RING_ATTENTION_INSTANTIATE(double)
RING_ATTENTION_INSTANTIATE(Bf16)
RING_ATTENTION_INSTANTIATE(Fp16)
#undef RING_ATTENTION_INSTANTIATE
// NOLINTEND(bugprone-macro-parentheses)

}  // namespace ring_attention
