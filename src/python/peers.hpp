/// \file
/// `PythonPeers`: peers that are an object of Python. `Caller`: the ranks that make a call, over MPI or over a group.
#pragma once

#include <memory>

#include "python/arrays.hpp"
#include "python/job.hpp"
#include "ring_attention/mpi/agreement.hpp"
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

/// The ranks that make a call, over MPI or over a group.
class Caller {
 public:
  Caller() = default;
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  virtual ~Caller() = default;

  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  /// The number of threads of this rank, unless a call says another.
  [[nodiscard]] virtual int threads() const = 0;
  [[nodiscard]] virtual Observers observers() const = 0;
  [[nodiscard]] virtual Attention& attention(const Options& options) = 0;
  /// Runs the part of a call in which this rank waits for others: without the interpreter's lock.
  virtual void run(const std::function<void()>& run) = 0;
  /// Runs a function of the user during such a wait.
  virtual void run_user_code(const std::function<void()>& run) = 0;
  /// Writes the calls of these ranks, which have begun a call, to a trace, in place of an earlier one. Collective.
  virtual void trace(const std::string& file) = 0;
  /// Makes one file of the trace. Collective. \throws AgreedError without a trace
  virtual void end_trace() = 0;
  /// Ends this rank's part of a trace, if there is one, and leaves its file as it is.
  virtual void drop_trace() = 0;
};

/// The ranks of a group.
class GroupCaller : public Caller {
 public:
  explicit GroupCaller(const py::object& peers)
      : interrupt_ends_(py::hasattr(peers, "interrupt_ends")), peers_(peers), attention_(peers_) {}

  [[nodiscard]] int rank() const override { return peers_.rank(); }
  [[nodiscard]] int size() const override { return peers_.size(); }
  [[nodiscard]] int threads() const override { return threads_; }
  [[nodiscard]] Observers observers() const override {
    return trace_ ? Observers{&trace_->observer} : Observers{};
  }
  [[nodiscard]] Attention& attention(const Options& options) override {
    attention_.options() = options;
    return attention_;
  }
  void run(const std::function<void()>& run) override {
    const py::gil_scoped_release unlocked;
    std::optional<InterruptEnds> interrupt;
    if (interrupt_ends_) interrupt.emplace();
    try {
      run();
    } catch (const AgreedError&) {
      throw;
    } catch (...) {
      is_apart = true;
      throw;
    }
  }
  void run_user_code(const std::function<void()>& run) override { run(); }
  void trace(const std::string& file) override;
  void end_trace() override;
  void drop_trace() override;
  /// Waits for the GPU calls of these ranks.
  void wait() {
    run([&] { attention_.wait(); });
  }
  /// \param ranks  of this machine
  void share_cores(int ranks);

  bool is_apart = false;  ///< a call has ended on this rank and perhaps not on another

 private:
  bool interrupt_ends_;
  PythonPeers peers_;
  std::unique_ptr<CallTrace> trace_;  // the Attention tells its observer until it is destroyed
  Attention attention_;
  int threads_ = 1;
};

}  // namespace ring_attention::python
