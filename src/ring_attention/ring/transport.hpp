/// \file
/// `Transport`: the interface between a ring and the code that moves its parcels.
#pragma once

#include <cstddef>
#include <span>

#include "ring_attention/core/shape.hpp"
#include "ring_attention/ring/topology.hpp"

namespace ring_attention {

/// One hop: send these bytes to next, fill these bytes from prev. An empty side means no message, and then the other end
/// of that message is empty as well. The memory belongs to the caller and must stay untouched from start to finish, except
/// that `send` may be read. A transport borrows it: declare the transport after the KvParcel, so that it is destroyed first
/// when an exception ends the loop.
struct Hop {
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

/// One rank's end of a ring, for one channel of parcels. The hooks of the ring loop, each with one meaning:
/// - start(hop): this hop may begin;
/// - progress(): called between tiles; lets messages move where they move inside calls only;
/// - finish(): the hop is over: `send` may be overwritten, `receive` may be read;
/// - drain(): the ring's last call: requires that no hop is under way; waits for what a GPU still has to do.
/// Misuse (start twice, finish without start, drain in between) throws Error.
class Transport {
 public:
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  virtual ~Transport() = default;

  [[nodiscard]] virtual Ring ring() const = 0;
  [[nodiscard]] virtual const TransportStatistics& statistics() const = 0;
  virtual void start(const Hop& hop) = 0;
  virtual void progress() {}
  virtual void finish() = 0;
  virtual void drain() = 0;
};

}  // namespace ring_attention
