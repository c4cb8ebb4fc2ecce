/// \file
/// `LoopbackTransport`: the ranks of a ring as threads of one process, over a link that can be slowed down.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "ring_attention/ring/transports/pending_hop.hpp"

namespace ring_attention {

/// What the simulated link costs, per message. The default is free.
struct SimulatedLink {
  std::chrono::duration<double> latency{0};
  double bytes_per_second = 0;  ///< 0: infinite
};

/// Moves one parcel; both spans are of one length.
using CopyParcel = std::function<void(std::span<const std::byte> from, std::span<std::byte> to)>;
void copy_in_host_memory(std::span<const std::byte> from, std::span<std::byte> to);

/// What the ranks share: one slot for each sender, receiver and channel, for the parcel on its way between them.
class LoopbackWorld {
 public:
  /// \param copy  how a parcel gets from the memory of one rank into that of another
  explicit LoopbackWorld(int ranks, SimulatedLink link = {},
                         std::chrono::duration<double> timeout = std::chrono::seconds(60),
                         CopyParcel copy = copy_in_host_memory);

  [[nodiscard]] int ranks() const { return ranks_; }

  /// Runs `body(rank)` on one thread per rank and joins them. If one throws, the waits of the others end,
  /// and the first exception is thrown again here.
  void run(const std::function<void(int)>& body);

 private:
  friend class LoopbackTransport;
  friend class LoopbackAllToAll;
  using Clock = std::chrono::steady_clock;

  struct Slot {
    std::span<const std::byte> bytes;  // the sender's memory
    Clock::time_point arrival;         // by the simulated link
    bool full = false;                 // the sender may not touch its memory while set
  };

  static constexpr int channels = 3;  // K,V; their gradients; all-to-all

  /// Rank `rank` waits for `ready` under the lock; throws when the world was stopped or the time-out is over.
  void wait(std::unique_lock<std::mutex>& lock, int rank, const std::string& what, auto ready);
  /// Throws in a rank that the failure of another one wakes up. Under the lock.
  void require_running() const;
  /// Ends the waits of all ranks: from here on no rank reads a parcel of another one.
  void stop();
  /// Ends the wait of `rank` if what it waits for is there. A rank waits in one place at a time.
  void wake(int rank) { changed_[static_cast<std::size_t>(rank)].notify_one(); }

  /// When bytes that leave now arrive, by the simulated link.
  [[nodiscard]] Clock::time_point arrival(Index bytes) const;
  /// Lends these bytes to the receiver.
  void send(int from, int to, int channel, std::span<const std::byte> bytes, Clock::time_point arrival);
  /// Waits for the parcel of `from` and copies it.
  void receive(int from, int to, int channel, std::span<std::byte> bytes);
  /// Waits until the parcel for `to` is copied.
  void wait_until_taken(int from, int to, int channel);

  /// The parcel on its way between two ranks.
  Slot& slot(int from, int to, int channel) {
    const int place = (channel * ranks_ + from) * ranks_ + to;
    return slots_[static_cast<std::size_t>(place)];
  }

  int ranks_;
  SimulatedLink link_;
  std::chrono::duration<double> timeout_;
  CopyParcel copy_;
  std::mutex mutex_;
  std::vector<std::condition_variable> changed_;  // what this rank may wait for
  std::vector<Slot> slots_;
  bool stopped_ = false;
};

/// One rank's end. A hop copies the parcel once, from the sender's memory into the receiver's.
/// The memory of a rank that fails in the middle of a hop is freed: the other ranks are stopped first.
class LoopbackTransport : public Transport {
 public:
  /// \param channel  0 or 1: keeps parcels apart (K,V and their gradients)
  LoopbackTransport(LoopbackWorld& world, int rank, int channel = 0)
      : LoopbackTransport(world, rank, channel, {1, world.ranks()}) {}
  /// The ring is the group of `rank` along `axis`.
  LoopbackTransport(LoopbackWorld& world, int rank, int channel, const Axis& axis)
      : world_(world),
        ring_(axis.ring(rank)),
        rank_(rank),
        next_(axis.at(rank, ring_.next())),
        prev_(axis.at(rank, ring_.prev())),
        channel_(channel) {}
  ~LoopbackTransport() override;

  [[nodiscard]] Ring ring() const override { return ring_; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }

  void start(const Hop& hop) override;
  void finish() override;
  void drain() override { pending_.require_idle(); }

 private:
  LoopbackWorld& world_;
  Ring ring_;
  int rank_, next_, prev_;  // in the world
  int channel_;
  PendingHop pending_;
  bool lent_ = false;  // the next rank may still read the parcel
  TransportStatistics statistics_;
};

}  // namespace ring_attention
