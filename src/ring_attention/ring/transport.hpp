/// \file
/// `Transport`: what a ring needs of the thing that moves its parcels.
#pragma once

#include <concepts>
#include <cstddef>
#include <span>

#include "ring_attention/core/shape.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention {

/// One hop: send these bytes to next, fill these bytes from prev. An empty side is no message; the other end has the
/// same side empty. The memory belongs to the caller and must stay untouched from start to finish, except that `send`
/// may be read. A transport borrows it: declare the transport after the KvParcel, so that it is destroyed first when an
/// exception ends the loop.
struct Exchange {
  std::span<const std::byte> send;
  std::span<std::byte> receive;
};

/// What a transport has done so far.
struct TransportStatistics {
  Index messages_sent = 0;
  Index bytes_sent = 0;
  Index bytes_received = 0;
  double exposed_seconds = 0;  ///< time inside finish(): communication that computing did not hide

  TransportStatistics& operator+=(const TransportStatistics& more) {
    messages_sent += more.messages_sent;
    bytes_sent += more.bytes_sent;
    bytes_received += more.bytes_received;
    exposed_seconds += more.exposed_seconds;
    return *this;
  }
};

/// The hooks of the ring loop, each with one meaning:
/// - start(exchange): this hop may begin;
/// - progress(): called between tiles; lets messages move where they move inside calls only;
/// - finish(): the hop is over: `send` may be overwritten, `receive` may be read;
/// - drain(): no hop is under way.
/// Misuse (start twice, finish without start, drain in between) throws Error.
template <class T>
concept Transport = requires(T& transport, const T& constant, const Exchange& exchange) {
  { constant.ring() } -> std::convertible_to<Ring>;
  { constant.statistics() } -> std::convertible_to<TransportStatistics>;
  transport.start(exchange);
  transport.progress();
  transport.finish();
  transport.drain();
};

}  // namespace ring_attention
