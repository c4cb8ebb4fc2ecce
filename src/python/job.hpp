/// \file
/// `Job`: the ranks that this process belongs to, and its waits for them.
///
/// No wait inside a call is without limit. At the beginning of a call a rank can give up, which is an exception
/// (rendezvous.hpp). Inside a call MPI reads and fills its arrays, and it cannot give up: there a watchdog ends the
/// process, and with it the launcher the job.
#pragma once

#include <csignal>
#include <optional>

#include "program/watchdog.hpp"
#include "python/rendezvous.hpp"

namespace ring_attention::python {

class Job {
 public:
  /// Starts MPI, unless another part of the process has done so; then that part ends it. Collective. The watchdog ends a
  /// process that waits longer than `timeout`.
  /// \throws Error when MPI has ended, or this process has loaded two MPI libraries
  static void start(Seconds timeout);
  /// Ends MPI, unless another part ends it. Collective.
  static void finish();
  /// \throws Error before start() and after finish()
  static Job& started();

  Job();

  [[nodiscard]] const Communicator& world() const { return world_; }
  /// The cores of this machine, shared out over its ranks.
  [[nodiscard]] int threads_of_a_rank() const { return threads_of_a_rank_; }

  /// Begins a call of all ranks (Rendezvous::begin), which waits for no rank longer than `timeout`.
  void begin_together(const std::string& call, const std::string& problem, Seconds timeout);

  /// Runs the rest of the call. When it fails on this rank alone, no further call is possible: the others are inside this one.
  template <class Run>
  void run(Run run) {
    try {
      run();
    } catch (const AgreedError&) {
      throw;
    } catch (...) {
      is_apart_ = true;
      throw;
    }
  }

  /// Has a call ended on this rank and perhaps not on another? Then MPI_Finalize would wait for that rank.
  [[nodiscard]] bool is_apart() const { return is_apart_ && world_.size() > 1; }

  /// The watchdog watches from watch() to unwatch(), and ends the process unless `activity` moves.
  void watch(Phase phase, int peer);
  void unwatch();
  Activity& activity() { return activity_; }

 private:
  Communicator world_{MPI_COMM_WORLD};  // for the module's own messages
  int threads_of_a_rank_;
  Rendezvous rendezvous_{world_};
  Activity activity_;
  std::optional<Watchdog> watchdog_;  // of several ranks
  Seconds timeout_{};                 // of the call
  bool is_apart_ = false;
};

/// While it lives, an interrupt (Ctrl-C) ends the process, and so the launcher ends the job: a rank that waits for a message
/// cannot get back to the interpreter.
class InterruptEnds {
 public:
  InterruptEnds();
  InterruptEnds(const InterruptEnds&) = delete;
  InterruptEnds& operator=(const InterruptEnds&) = delete;
  ~InterruptEnds() { sigaction(SIGINT, &before_, nullptr); }

 private:
  struct sigaction before_ = {};
};

/// While it lives, this rank waits for others inside a call.
class Wait {
 public:
  Wait(Job& job, Phase phase, int peer = -1) : job_(job) { job_.watch(phase, peer); }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;
  ~Wait() { job_.unwatch(); }

 private:
  Job& job_;
  InterruptEnds interrupt_;
};

}  // namespace ring_attention::python
