/// \file
/// `LoopbackWorld`: ranks that are threads of one process, over a link that can be slowed down.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "ring_attention/ring/transports/peers.hpp"

namespace ring_attention {

/// What the simulated link costs, per message. The default is free.
struct SimulatedLink {
  std::chrono::duration<double> latency{0};
  double bytes_per_second = 0;  ///< 0: infinite
};

/// Moves one parcel; both spans are of one length.
using CopyParcel = std::function<void(std::span<const std::byte> from, std::span<std::byte> to)>;
void copy_in_host_memory(std::span<const std::byte> from, std::span<std::byte> to);

/// What the ranks share: one slot for each sender, receiver and tag, for the message on its way between them. A message is
/// copied once, from the sender's memory into the receiver's. The memory of a rank that fails before that is freed: the other
/// ranks are stopped first.
class LoopbackWorld {
 public:
  /// \param copy  how a parcel gets from the memory of one rank into that of another
  explicit LoopbackWorld(int ranks, SimulatedLink link = {},
                         std::chrono::duration<double> timeout = std::chrono::seconds(60),
                         CopyParcel copy = copy_in_host_memory);

  [[nodiscard]] int ranks() const { return ranks_; }
  /// One rank's end, for its thread.
  [[nodiscard]] Peers& peers(int rank) { return *peers_[static_cast<std::size_t>(rank)]; }

  /// Runs `body(rank)` on one thread per rank and joins them. If one throws, the waits of the others end,
  /// and the first exception is thrown again here.
  void run(const std::function<void(int)>& body);

 private:
  class End;
  struct Sent;
  using Clock = std::chrono::steady_clock;

  struct Slot {
    std::span<const std::byte> bytes;  // the sender's memory
    Clock::time_point arrival;         // by the simulated link
    bool full = false;                 // the sender may not touch its memory while set
  };

  static constexpr int tags = 3;  // K,V; their gradients; what all do together

  /// Rank `rank` waits for `ready` under the lock; throws when the world was stopped or the time-out is over.
  void wait(std::unique_lock<std::mutex>& lock, int rank, const std::string& what, auto ready);
  /// Throws in a rank that the failure of another one wakes up. Under the lock.
  void require_running() const;
  /// Rank `rank` ends the waits of all: from here on no rank reads a parcel of another one.
  void stop(int rank);
  /// Ends the wait of `rank` if what it waits for is there. A rank waits in one place at a time.
  void wake(int rank) { changed_[static_cast<std::size_t>(rank)].notify_one(); }

  /// Lends these bytes to the receiver. Those of one rank and tag leave one after the other.
  void send(int from, int to, int tag, std::span<const std::byte> bytes);
  /// Waits for the message of `from` and copies it.
  void receive(int from, int to, int tag, std::span<std::byte> bytes);
  /// Waits until the message for `to` is copied.
  void wait_until_taken(int from, int to, int tag);

  /// The message on its way between two ranks.
  Slot& slot(int from, int to, int tag) {
    const int place = (tag * ranks_ + from) * ranks_ + to;
    return slots_[static_cast<std::size_t>(place)];
  }

  int ranks_;
  SimulatedLink link_;
  std::chrono::duration<double> timeout_;
  CopyParcel copy_;
  std::mutex mutex_;
  std::vector<std::condition_variable> changed_;  // what this rank may wait for
  std::vector<Slot> slots_;
  std::vector<Clock::time_point> left_;  // of each tag and rank: when its last byte leaves
  std::vector<std::unique_ptr<Peers>> peers_;
  std::optional<int> stopped_by_;  // the first rank that stopped the world
};

/// A ring of the threads of a world, or of those along an axis.
class LoopbackTransport : public PeerTransport {
 public:
  LoopbackTransport(LoopbackWorld& world, int rank, int channel = 0)
      : LoopbackTransport(world, rank, channel, {1, world.ranks()}) {}
  LoopbackTransport(LoopbackWorld& world, int rank, int channel, const Axis& axis)
      : PeerTransport(world.peers(rank), axis, channel) {}
};

}  // namespace ring_attention
