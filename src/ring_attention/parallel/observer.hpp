/// \file
/// `Observer`: is told what one rank does, by the thread that does it: a watchdog, a trace, a caller's progress.
#pragma once

#include <memory>
#include <vector>

#include "ring_attention/attention/backward_engine.hpp"
#include "ring_attention/attention/mask.hpp"
#include "ring_attention/parallel/collectives/all_to_all.hpp"
#include "ring_attention/parallel/links.hpp"
#include "ring_attention/parallel/rank_grid.hpp"

namespace ring_attention {

struct SharedAttention;

/// A hop of a ring, as one rank sees it.
struct ObservedHop {
  Channel channel;
  int number;  ///< 0 is the first
  Ring ring;
  Hop bytes;
};

/// An exchange of pieces along the axis of a group of ranks.
struct PieceExchange {
  enum class Along { ulysses, ring, other };
  Along along;
  Axis axis;
  int rank;  ///< in the group
  const Pieces& pieces;
};

/// The queries of a rank in one pass.
struct Pass {
  const char* name;  ///< "forward" or "backward"
  const Mask& mask;
  const TokenRanges& queries;
};

/// Each event has a default that does nothing. Between hops and exchanges the rank computes. `waited`: the seconds for which
/// messages have kept the rank from computing.
class Observer {
 public:
  virtual ~Observer() = default;
  /// A ContextParallel is made.
  virtual void shares(const SharedAttention&) {}
  /// An engine has begun; and it is given the keys of a step, from 0 on. ends() follows.
  virtual void computes(const Pass&) {}
  virtual void step(int /*number*/, const TokenRanges& /*keys*/) {}
  /// Another part of the work, such as "finish". ends() follows.
  virtual void begins(const char* /*part*/) {}
  virtual void ends() {}
  /// Between tiles.
  virtual void beats() {}

  /// A transport is made.
  virtual void opens(Channel) {}
  /// Before a hop begins; before and after the wait for it.
  virtual void starts(const ObservedHop&) {}
  virtual void waits(const ObservedHop&) {}
  virtual void arrived(const ObservedHop&, double /*waited*/) {}
  /// Before and after the end of the last hop.
  virtual void drains(Channel) {}
  virtual void drained(Channel, double /*waited*/) {}
  /// Before and after an exchange.
  virtual void exchanges(const PieceExchange&) {}
  virtual void exchanged(const PieceExchange&, double /*waited*/) {}
};
/// All outlive what they observe.
using Observers = std::vector<Observer*>;

/// Tells all of them: tell(observers, &Observer::beats).
void tell(const Observers& all, auto event, const auto&... what) {
  for (Observer* const one : all) (one->*event)(what...);
}

/// A decorator that tells the observers, or the argument itself where there are none.
[[nodiscard]] std::unique_ptr<Transport> observed(std::unique_ptr<Transport> transport, const Observers& by,
                                                  Channel channel);
[[nodiscard]] Group observed(Group group, const Observers& by, PieceExchange::Along which, const Axis& axis);
template <class T>
[[nodiscard]] std::unique_ptr<Engine<T>> observed(std::unique_ptr<Engine<T>> engine, const Observers& by,
                                                  const Pass& pass);
template <class T>
[[nodiscard]] std::unique_ptr<BackwardEngine<T>> observed(std::unique_ptr<BackwardEngine<T>> engine,
                                                          const Observers& by, const Pass& pass);

}  // namespace ring_attention
