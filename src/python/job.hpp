/// \file
/// `Job`: the ranks that this process belongs to, and its waits for them; `Ranks`: those of them that make a call.
///
/// No wait inside a call is without limit. At the beginning of a call a rank can give up, which is an exception
/// (rendezvous.hpp). Inside a call MPI reads and fills its arrays, and it cannot give up: there a watchdog ends the
/// process, and with it the launcher the job.
#pragma once

#include <csignal>
#include <list>
#include <memory>
#include <optional>

#include "program/activity_observer.hpp"
#include "program/trace/peer_ranks.hpp"
#include "program/trace/trace_observer.hpp"
#include "python/rendezvous.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/ring_attention.hpp"

namespace ring_attention::python {

/// The ranks that make a call: those of a communicator.
struct Ranks {
  /// \param of  stays the caller's
  /// \throws InputError unless it is an intracommunicator
  explicit Ranks(MPI_Comm of);

  MPI_Comm comm;
  int rank = 0, size = 1;
};

/// What ranks do in their calls, written to a file.
struct CallTrace {
  CallTrace(MPI_Comm of, const std::string& file)
      : comm(std::in_place, of), trace(*comm, file), observer(trace) {}
  CallTrace(Peers& peers, const std::string& file) : trace(trace_ranks(peers), file), observer(trace) {}

  std::optional<Communicator> comm;
  Trace trace;
  TraceObserver observer;
};
/// Makes one file of it. Collective. \throws AgreedError without a trace
void join(CallTrace* trace);

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

  /// Begins a call of all of `ranks` (Rendezvous::begin), which waits for no rank longer than `timeout`; the first call with
  /// a communicator twice as long.
  std::string begin_together(const Ranks& ranks, const std::string& call, const std::string& problem,
                             const std::string& news, Seconds timeout);
  /// A duplicate of the communicator of ranks that have begun a call. It lives until theirs is freed.
  [[nodiscard]] MPI_Comm comm_of(const Ranks& ranks) const { return group(ranks).rendezvous.comm(); }
  /// The Attention of these ranks, with these options for the next call. Made in their first call; lives as long.
  [[nodiscard]] Attention& attention_of(const Ranks& ranks, const Options& options) const;
  /// Who is told what this rank does in a call of these ranks: the watchdog and, from trace() to end_trace(), a trace.
  [[nodiscard]] Observers observers(const Ranks& ranks);
  /// Writes the calls of these ranks, which have begun a call, to a trace, in place of an earlier one. Collective.
  /// \throws AgreedError when a rank cannot write
  void trace(const Ranks& ranks, const std::string& file);
  /// Makes one file of the trace. Collective. \throws AgreedError without a trace
  void end_trace(const Ranks& ranks);
  /// Ends this rank's part of a trace, if there is one, and leaves its file as it is.
  void drop_trace(const Ranks& ranks);
  /// Waits for the GPU calls of these ranks.
  void wait(const Ranks& ranks) const;

  /// Runs the rest of the call. When it fails on this rank alone, no further call is possible: the others are inside this one.
  template <class Run>
  void run(const Ranks& ranks, Run run) {
    try {
      run();
    } catch (const AgreedError&) {
      throw;
    } catch (...) {
      if (ranks.size > 1) is_apart_ = true;
      throw;
    }
  }

  /// Has a call ended on this rank and perhaps not on another? Then MPI_Finalize would wait for that rank.
  [[nodiscard]] static bool is_apart();

  /// The watchdog watches from watch() to unwatch(), and ends the process unless `activity` moves.
  void watch(Phase phase, int peer);
  void unwatch();
  /// The watchdog watches again, in the phase of the last watch().
  void watch();

 private:
  /// What belongs to a communicator.
  struct Group {
    Group(MPI_Comm comm, const std::string& call, Seconds timeout) : rendezvous(comm, call, timeout) {}

    Rendezvous rendezvous;
    std::unique_ptr<CallTrace> trace;  // the Attention tells its observer until it is destroyed
    std::optional<Attention> attention;
  };

  [[nodiscard]] Group* find(MPI_Comm comm) const;
  /// \throws Error unless these ranks have begun a call
  [[nodiscard]] Group& group(const Ranks& ranks) const;
  Group& make(MPI_Comm comm, const std::string& call, Seconds timeout);
  /// MPI calls it when a communicator is freed that has the attribute.
  static int freed(MPI_Comm comm, int key, void* group, void* state);

  const Ranks world_{MPI_COMM_WORLD};
  int threads_of_a_rank_;
  int key_ = MPI_KEYVAL_INVALID;  // of the attribute by which a communicator knows its group
  Activity activity_;
  ActivityObserver observer_{activity_};
  std::optional<Watchdog> watchdog_;  // of several ranks
  std::list<Group> groups_;  // an Attention tells the observer until it is destroyed: after the three above
  Seconds timeout_{};        // of the call
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
