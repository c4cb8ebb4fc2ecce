/// \file
/// `Peers`: the calls by which ranks exchange bytes where MPI does not: a process group of PyTorch, a communicator of
/// mpi4py, the threads of one process.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace ring_attention {

/// One rank's end of a group of ranks. A call that fails, or that waits too long, throws, and ends the group.
class Peers {
 public:
  /// A message that has begun. The memory belongs to the caller, and stays until wait() has returned.
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
  /// Neither waits for the other rank. Two messages with the same sender, receiver and tag keep their order.
  /// \param tag  0 to 2
  [[nodiscard]] virtual std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) = 0;
  [[nodiscard]] virtual std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) = 0;
  /// Each bit becomes 1 if it is 1 on any rank. Collective.
  virtual void unite(std::span<std::byte> bytes) = 0;
};

}  // namespace ring_attention
