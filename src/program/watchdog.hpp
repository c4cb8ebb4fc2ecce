/// \file
/// `Activity` and `Watchdog`: a job in which nothing moves ends, and one line names the place.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

namespace ring_attention {

/// What a rank does now. Its main thread writes it, its watchdog reads it.
enum class Phase : std::uint8_t { start, read, agree, compute, exchange, drain, check, write, end };

[[nodiscard]] const char* name(Phase phase);

/// Is told each phase that a rank enters, by its main thread.
class PhaseObserver {
 public:
  virtual ~PhaseObserver() = default;
  virtual void enters(Phase phase) = 0;
};

/// The latest (phase, step, peer) of one rank and a count of its signs of life.
class Activity {
 public:
  /// Enters a phase. -1 means: no step, no peer.
  void enter(Phase phase, int step = -1, int peer = -1);
  /// \param observer  null: none
  void observe(PhaseObserver* observer) { observer_ = observer; }
  /// How long the work should take, in seconds.
  void expect(double seconds) { expected_.store(seconds, std::memory_order_relaxed); }
  /// 0: not known.
  [[nodiscard]] double expected() const { return expected_.load(std::memory_order_relaxed); }
  /// A sign of life within the phase: a tile done, a message moved.
  void beat() { beats_.fetch_add(1, std::memory_order_relaxed); }

  /// The step of the latest phase; -1: none.
  [[nodiscard]] int step() const { return step_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t beats() const { return beats_.load(std::memory_order_relaxed); }
  /// `exchange, step 2, peer 1`.
  [[nodiscard]] std::string describe() const;

 private:
  std::atomic<std::uint64_t> beats_{0};
  std::atomic<Phase> phase_{Phase::start};
  std::atomic<int> step_{-1};
  std::atomic<int> peer_{-1};
  std::atomic<double> expected_{0};
  PhaseObserver* observer_ = nullptr;  // of the main thread
};

/// A thread that ends the process with exit code 3 when `activity` has not moved for `timeout`, after one
/// line on stderr: `[rank 2] nothing moved for 60 s: exchange, step 2, peer 1; ...`.
///
/// The watchdog never calls MPI: the main thread may never return from an MPI call, and MPI_Abort is not safe from
/// this thread. The launcher ends the other ranks.
class Watchdog {
 public:
  /// \param rank   -1: not known yet
  /// \param limit  what a user sets to give more time
  Watchdog(const Activity& activity, std::chrono::duration<double> timeout, int rank,
           const char* limit = "--timeout");
  ~Watchdog();

  /// Sets the timeout and the rank. They are known only after the first wait for a peer, MPI's own
  /// initialisation.
  void expect(std::chrono::duration<double> timeout, int rank);

 private:
  void watch();

  const Activity& activity_;
  std::chrono::duration<double> timeout_;
  int rank_;
  const char* limit_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace ring_attention
