/// \file
/// `Job`: the ranks that this process belongs to, and its waits for them.
///
/// No wait inside a call is without limit. At the beginning of a call a rank can give up, which is an exception
/// (_meeting.py). Inside a call MPI reads and fills its arrays, and it cannot give up: there a watchdog ends the
/// process, and with it the launcher the job.
#pragma once

#include <csignal>
#include <list>
#include <memory>
#include <optional>

#include "io/trace_file.hpp"
#include "program/activity_observer.hpp"
#include "python/gpu.hpp"
#include "python/letters.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/mpi/host.hpp"
#include "ring_attention/parallel/peer_links.hpp"
#include "ring_attention/ring_attention.hpp"

namespace ring_attention::python {

/// What ranks do in their calls, written to a file.
struct CallTrace {
  CallTrace(MPI_Comm of, const std::string& name)
      : comm(std::in_place, of),
        file(std::make_unique<MpiAllToAll>(*comm), name, all_gather(*comm, host_group(*comm).first)),
        observer(file.trace()) {}
  CallTrace(Peers& peers, const std::string& name)
      : file(std::make_unique<PeerAllToAll>(peers, Axis{1, peers.size()}), name), observer(file.trace()) {}

  std::optional<Communicator> comm;
  TraceFile file;
  TraceObserver observer;
};

/// What ranks keep from one call to the next.
struct Kept {
  std::unique_ptr<CallTrace> trace;  // GPU calls tell its observer until they end
  std::shared_ptr<AttentionRanks> ranks;
  GpuCalls gpu;
};

class Job {
 public:
  /// Starts MPI, which is collective, unless another part of the process has done so; then that part ends it. The watchdog
  /// ends a process that waits longer than `timeout`.
  /// \throws Error when MPI has ended, or this process has loaded two MPI libraries
  static void start(Seconds timeout);
  /// Ends MPI, unless another part ends it, or has done so. Collective.
  static void finish();
  /// \throws Error before start() and after finish()
  static Job& started();
  /// Ends all ranks of the job, if MPI has not ended.
  static void abort(int code);

  Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job();

  /// Waits for all ranks of the job, at the first call of all of them. Collective; the watchdog is that of start().
  void meet(Seconds timeout);

  /// The cores of this machine, shared out over its ranks; before meet() over all ranks of the job.
  [[nodiscard]] int threads_of_a_rank() const { return threads_of_a_rank_; }

  /// What belongs to a communicator.
  struct Group {
    Group(MPI_Comm comm, const std::string& call, Seconds timeout) : letters(comm, call, timeout) {}

    Letters letters;
    Kept kept;
  };

  /// Null before the first call of these ranks. It lives until the communicator is freed.
  [[nodiscard]] Group* find(MPI_Comm comm) const;
  /// The ranks of a call that waits for no rank longer than `timeout`; the first call with a communicator twice as long.
  Group& open(MPI_Comm comm, const std::string& call, Seconds timeout);
  /// The watchdog's.
  [[nodiscard]] ActivityObserver& observer() { return observer_; }

  /// A call has failed on this rank alone. Then no further call is possible: the others are inside this one.
  void set_apart() { is_apart_ = true; }
  /// Has a call ended on this rank and perhaps not on another? Then MPI_Finalize would wait for that rank.
  [[nodiscard]] static bool is_apart();

  /// The watchdog watches from watch() to unwatch(), and ends the process unless `activity` moves.
  void watch(Phase phase, int peer);
  void unwatch();
  /// The watchdog watches again, in the phase of the last watch().
  void watch();

 private:
  Group& make(MPI_Comm comm, const std::string& call, Seconds timeout);
  /// MPI calls it when a communicator is freed that has the attribute.
  static int freed(MPI_Comm comm, int key, void* group, void* state);

  int rank_ = 0, size_ = 1;  // of all ranks
  int threads_of_a_rank_ = 1;
  int key_ = MPI_KEYVAL_INVALID;  // of the attribute by which a communicator knows its group
  Activity activity_;
  ActivityObserver observer_{activity_};
  std::optional<Watchdog> watchdog_;  // of several ranks
  std::list<Group> groups_;           // GPU calls tell the observer until they end: after the three above
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
