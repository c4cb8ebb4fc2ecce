#include "python/peers.hpp"

#include "ring_attention/cpu/threads.hpp"

namespace ring_attention::python {
namespace {

/// A request, and the object that made it.
class Request : public Peers::Message {
 public:
  Request(py::object peers, py::object request) : peers_(std::move(peers)), request_(std::move(request)) {}
  Request(const Request&) = delete;
  Request& operator=(const Request&) = delete;
  ~Request() override {
    const py::gil_scoped_acquire locked;
    peers_ = request_ = {};
  }
  void wait() override {
    const py::gil_scoped_acquire locked;
    peers_.attr("wait")(request_);
  }

 private:
  py::object peers_, request_;
};

py::memoryview memory(std::span<std::byte> bytes) {
  return py::memoryview::from_memory(bytes.data(), std::ssize(bytes));
}

}  // namespace

std::unique_ptr<Peers::Message> PythonPeers::send(std::span<const std::byte> bytes, int to, int tag) {
  const py::gil_scoped_acquire locked;
  // Not a view that forbids writing: PyTorch and mpi4py warn of one.
  const std::span<std::byte> same(const_cast<std::byte*>(bytes.data()), bytes.size());
  return std::make_unique<Request>(peers_, peers_.attr("send")(memory(same), to, tag));
}

std::unique_ptr<Peers::Message> PythonPeers::receive(std::span<std::byte> bytes, int from, int tag) {
  const py::gil_scoped_acquire locked;
  return std::make_unique<Request>(peers_, peers_.attr("receive")(memory(bytes), from, tag));
}

void PythonPeers::unite(std::span<std::byte> bytes) {
  if (bytes.empty()) return;
  const py::gil_scoped_acquire locked;
  peers_.attr("unite")(memory(bytes));
}

Kept& Ranks::kept_by_calls() {
  Kept* const known = kept();
  require(known != nullptr, "these ranks have not begun a call");
  return *known;  // NOLINT(clang-analyzer-core.uninitialized.UndefReturn): `require` throws
}

Observers Ranks::observers() {
  Observers all = watchdog();
  if (Kept* const known = kept(); known != nullptr && known->trace) all.push_back(&known->trace->observer);
  return all;
}

const std::shared_ptr<AttentionRanks>& Ranks::attention_ranks() {
  std::shared_ptr<AttentionRanks>& made = kept_by_calls().ranks;
  if (!made) made = make_attention_ranks();
  return made;
}

void Ranks::wait() {
  run([&] {
    if (Kept* const known = kept(); known != nullptr) known->gpu.wait();
  });
}

void Ranks::trace(const std::string& file) {
  drop_trace();
  run([&] { kept_by_calls().trace = make_trace(file); }, Phase::write);
}

void Ranks::end_trace() {
  run(
      [&] {
        CallTrace* const made = kept_by_calls().trace.get();
        if (made == nullptr) throw AgreedError("trace: a later trace of these ranks has ended in this block");
        made->file.join();
      },
      Phase::write);
  drop_trace();
}

void Ranks::drop_trace() {
  Kept& known = kept_by_calls();
  known.gpu.observe(watchdog());
  known.trace.reset();
}

void PeerRanks::run(const std::function<void()>& run, Phase) {
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

void PeerRanks::share_cores(int ranks) { threads_ = std::max(1, usable_cores() / ranks); }

}  // namespace ring_attention::python
