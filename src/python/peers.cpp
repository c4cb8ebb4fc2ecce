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

void GroupCaller::trace(const std::string& file) {
  drop_trace();
  run([&] { trace_ = std::make_unique<CallTrace>(peers_, file); });
}

void GroupCaller::end_trace() {
  run([&] { join(trace_.get()); });
  drop_trace();
}

void GroupCaller::drop_trace() {
  attention_.options().observers = {};
  trace_.reset();
}

void GroupCaller::share_cores(int ranks) { threads_ = std::max(1, usable_cores() / ranks); }

}  // namespace ring_attention::python
