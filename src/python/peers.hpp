/// \file
/// `PythonPeers`: peers that are an object of Python. `Ranks`: the ranks that make a call, over MPI or over Peers.
#pragma once

#include <memory>

#include "python/arrays.hpp"
#include "python/job.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/peer_ranks.hpp"
#include "ring_attention/ring_attention.hpp"

namespace ring_attention::python {

/// Its methods are called with the interpreter's lock: send(memory, to, tag) and receive(memory, source, tag), which
/// return a request; wait(request); unite(memory).
class PythonPeers : public Peers {
 public:
  explicit PythonPeers(const py::object& peers)
      : rank_(peers.attr("rank").cast<int>()), size_(peers.attr("size").cast<int>()), peers_(peers) {}

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  [[nodiscard]] std::unique_ptr<Message> send(std::span<const std::byte> bytes, int to, int tag) override;
  [[nodiscard]] std::unique_ptr<Message> receive(std::span<std::byte> bytes, int from, int tag) override;
  void unite(std::span<std::byte> bytes) override;

 private:
  int rank_, size_;
  py::object peers_;  // a thread with the interpreter's lock makes and destroys this object
};

/// The ranks that make a call, over MPI or over Peers.
class Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;
  virtual ~Ranks() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// The number of threads of this rank, unless a call says another.
  [[nodiscard]] virtual int threads() const = 0;
  /// Runs the part of a call in which this rank waits for others: without the interpreter's lock.
  virtual void run(const std::function<void()>& run, Phase phase = Phase::compute) = 0;
  /// Runs a function of the user during such a wait.
  virtual void run_user_code(const std::function<void()>& run) = 0;

  /// Who is told what this rank does in a call: the watchdog over MPI and, from trace() to end_trace(), a trace.
  [[nodiscard]] Observers observers();
  /// These ranks as the library's calls have them. Made in their first call.
  [[nodiscard]] const std::shared_ptr<AttentionRanks>& attention_ranks();
  [[nodiscard]] GpuCalls& gpu_calls() { return kept_by_calls().gpu; }
  /// Waits for the GPU calls of these ranks.
  void wait();
  /// Writes the calls of these ranks, which have begun a call, to a trace, in place of an earlier one. Collective.
  /// \throws AgreedError when a rank cannot write
  void trace(const std::string& file);
  /// Makes one file of the trace. Collective. \throws AgreedError without a trace
  void end_trace();
  /// Ends this rank's part of a trace, if there is one, and leaves its file as it is.
  void drop_trace();

 private:
  /// Null before the first call of these ranks.
  [[nodiscard]] virtual Kept* kept() = 0;
  /// \throws Error before the first call
  [[nodiscard]] Kept& kept_by_calls();
  [[nodiscard]] virtual Observers watchdog() { return {}; }
  [[nodiscard]] virtual std::shared_ptr<AttentionRanks> make_attention_ranks() = 0;
  [[nodiscard]] virtual std::unique_ptr<CallTrace> make_trace(const std::string& file) = 0;
};

class PeerRanks : public Ranks {
 public:
  explicit PeerRanks(const py::object& peers)
      : interrupt_ends_(py::hasattr(peers, "interrupt_ends")), peers_(peers) {}

  [[nodiscard]] int rank() const override { return peers_.rank(); }
  [[nodiscard]] int size() const override { return peers_.size(); }
  [[nodiscard]] int threads() const override { return threads_; }
  void run(const std::function<void()>& run, Phase) override;
  void run_user_code(const std::function<void()>& run) override { run(); }
  /// \param ranks  of this machine
  void share_cores(int ranks);

  bool is_apart = false;  ///< a call has ended on this rank and perhaps not on another

 private:
  [[nodiscard]] Kept* kept() override { return &kept_; }
  [[nodiscard]] std::shared_ptr<AttentionRanks> make_attention_ranks() override {
    return ring_attention::peers(peers_);
  }
  [[nodiscard]] std::unique_ptr<CallTrace> make_trace(const std::string& file) override {
    return std::make_unique<CallTrace>(peers_, file);
  }

  bool interrupt_ends_;
  PythonPeers peers_;
  Kept kept_;
  int threads_ = 1;
};

}  // namespace ring_attention::python
