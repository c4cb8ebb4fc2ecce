/// \file
/// `Peers`: the calls by which ranks exchange bytes where MPI does not: the threads of one process, a process group of
/// PyTorch, a communicator of mpi4py, the instances of a program in a browser page. `PeerTransport`: a ring over them.
#pragma once

#include <memory>

#include "ring_attention/ring/transports/pending_hop.hpp"

namespace ring_attention {

/// One rank's end of a group of ranks. An implementation gives this:
///
/// - rank() is one of 0 to size() - 1, and neither changes.
/// - send() and receive() begin a message and wait for no other rank. Two messages with the same sender, receiver and tag keep
///   their order. The bytes belong to the caller, and stay until the message's wait() has returned.
/// - Only Message::wait() and unite() wait. Until they return, the other ranks have to run: a rank is a process, a thread, or
///   one of several instances in one thread, whose stack is suspended while it waits.
/// - A rank makes all calls from one thread, and receives from a rank that it names.
/// - A call that fails, or that waits too long, throws, and ends the group: no rank then touches bytes of another one. A
///   Message that is destroyed before its wait() has returned ends the group, too, if a rank may still touch its bytes.
class Peers {
 public:
  /// A message that has begun.
  class Message {
   public:
    Message() = default;
    Message(const Message&) = delete;
    Message& operator=(const Message&) = delete;
    virtual ~Message() = default;
    /// Returns when the bytes to send may be overwritten, or the bytes to receive are there. It is called once.
    virtual void wait() = 0;
  };

  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;
  virtual ~Peers() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// \param tag  0 and 1: of a ring's channels, 2: of what all ranks of a group do together
  [[nodiscard]] virtual std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) = 0;
  [[nodiscard]] virtual std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) = 0;
  /// Each bit becomes 1 if it is 1 on any rank. Collective.
  virtual void unite(std::span<std::byte> bytes) = 0;

  static constexpr int collective_tag = 2;
};

/// Messages that travel while the rank computes, if the peers move them then.
class PeerTransport : public Transport {
 public:
  /// \param peers    outlive this object
  /// \param ring     the axis of the ring
  /// \param channel  0 or 1: keeps parcels apart (K,V and their gradients)
  PeerTransport(Peers& peers, const Axis& ring, int channel) : peers_(peers), axis_(ring), tag_(channel) {}

  [[nodiscard]] Ring ring() const override { return axis_.ring(peers_.rank()); }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }
  void start(const Hop& hop) override;
  void finish() override;
  void drain() override { pending_.require_idle(); }

 private:
  Peers& peers_;
  Axis axis_;
  int tag_;
  std::unique_ptr<Peers::Message> receive_, send_;
  PendingHop pending_;
  TransportStatistics statistics_;
};

}  // namespace ring_attention
