#include "ring_attention/ring/transports/nccl.hpp"

#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

#include "ring_attention/core/text.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/mpi/collectives.hpp"

namespace ring_attention {
namespace {

using Clock = std::chrono::steady_clock;

/// With NCCL's own explanation, where it has one.
std::string describe(ncclResult_t code) {
  const std::string reason = ncclGetLastError(nullptr);
  return std::string("NCCL: ") + ncclGetErrorString(code) + (reason.empty() ? "" : " (" + reason + ")");
}

/// Throws Error unless the call has succeeded or is in progress.
void check(ncclResult_t code, std::source_location where = std::source_location::current()) {
  if (code != ncclSuccess && code != ncclInProgress) throw Error(located(describe(code), where));
}

/// The error that NCCL has reported asynchronously, or of the question itself.
ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t code = ncclCommGetAsyncError(comm, &state);
  return code == ncclSuccess ? state : code;
}

/// Frees the core for other ranks and for NCCL's own thread.
void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

/// Must be called before any function of NCCL, which reads these variables once.
void pretend_own_machine() {
  const std::string host = "ring-attention-" + std::to_string(getpid());
  for (const auto& [name, value] : {std::pair<const char*, const char*>{"NCCL_HOSTID", host.c_str()},
                                    {"NCCL_SOCKET_IFNAME", "lo"},
                                    {"NCCL_NET", "Socket"},
                                    {"NCCL_MNNVL_ENABLE", "0"}})
    (void)setenv(name, value, 1);
}

}  // namespace

NcclWorld::NcclWorld(const Communicator& comm, NcclOptions options)
    : NcclWorld(
          {comm.rank(), comm.size()}, [&comm](std::string& text) { broadcast(comm, text); },
          std::move(options)) {}

NcclWorld::NcclWorld(const Ring& ring, const std::function<void(std::string&)>& broadcast,
                     NcclOptions options)
    : ring_(ring),
      options_(std::move(options)),
      stream_(cuda::Stream::Priority::high),
      exceptions_(std::uncaught_exceptions()) {
  if (ring_.size == 1) return;
  if (options_.share_gpu) pretend_own_machine();
  ncclUniqueId id{};
  std::string letter;  // a mark, then the id or why there is none
  if (ring_.rank == 0) {
    const ncclResult_t code = ncclGetUniqueId(&id);
    letter = code == ncclSuccess ? "=" + std::string(std::begin(id.internal), std::end(id.internal))
                                 : "!" + describe(code);
  }
  broadcast(letter);
  if (letter.front() == '!') throw AgreedError(letter.substr(1));
  std::copy(letter.begin() + 1, letter.end(), id.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // so that a missing rank cannot block the others without a time limit
  config.maxCTAs = options_.max_ctas;
  check(ncclCommInitRankConfig(&comm_, ring_.size, id, ring_.rank, &config));
  settle("the start of the communicator");
}

NcclWorld::~NcclWorld() {
  if (comm_ == nullptr) return;
  try {
    if (std::uncaught_exceptions() == exceptions_) {
      check(ncclCommFinalize(comm_));
      settle("the end of the communicator");
      (void)ncclCommDestroy(comm_);
      return;
    }
  } catch (const Error&) {  // aborted
    if (comm_ == nullptr) return;
  }
  (void)ncclCommAbort(comm_);
}

void NcclWorld::settle(const std::string& what) {
  const auto deadline = Clock::now() + options_.timeout;
  ncclResult_t state = state_of(comm_);
  for (; state == ncclInProgress; state = state_of(comm_)) {
    if (Clock::now() > deadline) abort_late(what);
    pause();
  }
  if (state != ncclSuccess) abort(what + ": " + describe(state));
}

void NcclWorld::require_alive() {
  if (!failure_.empty()) throw Error(failure_);
  if (comm_ == nullptr) return;  // a ring of one
  const ncclResult_t state = state_of(comm_);
  if (state != ncclSuccess && state != ncclInProgress) abort(describe(state) + ": is another rank gone?");
}

void NcclWorld::abort(const std::string& why) {
  end("NCCL ring, rank " + std::to_string(ring_.rank) + ": " + why);
  throw Error(failure_);
}

void NcclWorld::abort_late(const std::string& what) {
  abort(what + format(" took more than %g s", options_.timeout.count()) +
        ". NCCL_DEBUG=INFO shows what NCCL does. If every run ends so, try NCCL_P2P_DISABLE=1.");
}

// The clock stands before the hop, and after it. What this rank computes then waits only for hops that were enqueued
// earlier on the stream of all channels, so a hop that never comes is seen.
void NcclWorld::wait(const NcclHop& hop, const std::string& what) {
  auto begin = Clock::now();
  while (!(hop.arrived.is_done() && hop.resumed.is_done())) {
    require_alive();
    if (!hop.ready.is_done() || hop.arrived.is_done()) {
      begin = Clock::now();
      if (options_.moved) options_.moved();
    }
    if (Clock::now() > begin + options_.timeout) abort_late(what);
    pause();
  }
  if (options_.moved) options_.moved();
}

bool NcclWorld::poll() {
  require_alive();
  while (!under_way_.empty()) {
    const NcclHop& oldest = under_way_.front();
    const bool arrived = oldest.arrived.is_done();
    if (!arrived || !oldest.resumed.is_done()) {
      if (arrived || !oldest.ready.is_done()) {  // this rank computes
        oldest_since_.reset();
        return false;
      }
      if (!oldest_since_) oldest_since_ = Clock::now();
      if (Clock::now() > *oldest_since_ + options_.timeout) abort_late("a message of an enqueued call");
      return false;
    }
    under_way_.pop_front();
    oldest_since_.reset();
  }
  return true;
}

void NcclWorld::end(const std::string& why) noexcept {
  if (comm_ != nullptr) (void)ncclCommAbort(std::exchange(comm_, nullptr));
  if (failure_.empty()) failure_ = why;
}

/// Sends and receives of which none waits for another one. An error is thrown after the group has ended: in an open
/// group ncclCommAbort would only be enqueued.
class NcclWorld::Group {
 public:
  Group(ncclComm_t comm, cuda::StreamHandle stream) : comm_(comm), stream_(stream) { note(ncclGroupStart()); }

  void send(std::span<const std::byte> bytes, int to) {
    if (!bytes.empty()) note(ncclSend(bytes.data(), bytes.size(), ncclUint8, to, comm_, stream_));
  }
  void receive(std::span<std::byte> bytes, int from) {
    if (!bytes.empty()) note(ncclRecv(bytes.data(), bytes.size(), ncclUint8, from, comm_, stream_));
  }
  /// The first error of all calls, or that of the end.
  [[nodiscard]] ncclResult_t end() {
    note(ncclGroupEnd());
    return first_;
  }

 private:
  void note(ncclResult_t code) {
    if (first_ == ncclSuccess || first_ == ncclInProgress) first_ = code;
  }

  ncclComm_t comm_;
  cuda::StreamHandle stream_;
  ncclResult_t first_ = ncclSuccess;
};

void NcclWorld::enqueue(const std::string& what, const std::function<void(Group&)>& messages) {
  require(comm_ != nullptr, "NcclWorld: " + what + " of one rank, or after an error");
  Group group(comm_, stream());
  messages(group);
  check(group.end());
  settle("enqueueing " + what);  // returns at once, except for the first one, which connects the ranks
}

void NcclWorld::shift(const Hop& hop) {
  enqueue("a hop", [&](Group& group) {
    group.send(hop.send, ring_.next());
    group.receive(hop.receive, ring_.prev());
  });
}

void NcclWorld::all_to_all(const std::vector<std::span<const std::byte>>& to,
                           const std::vector<std::span<std::byte>>& from) {
  enqueue("an all-to-all", [&](Group& group) {
    for (int rank = 0; rank < ring_.size; ++rank) {
      if (rank == ring_.rank) continue;
      group.send(to[static_cast<std::size_t>(rank)], rank);
      group.receive(from[static_cast<std::size_t>(rank)], rank);
    }
  });
}

void NcclTransport::start(const Hop& hop) {
  pending_.start(hop);
  NcclHop& events = hops_.emplace_back();
  // The sent parcel is complete, and no kernel reads the memory of the received one.
  events.ready.record(compute_);
  events.ready.block(world_.stream());
  world_.shift(hop);
  events.arrived.record(world_.stream());
  if (!hop.send.empty()) ++statistics_.messages_sent;
  statistics_.bytes_sent += static_cast<Index>(hop.send.size());
}

void NcclTransport::finish() {
  const Hop& hop = pending_.finish();
  NcclHop& events = hops_.back();
  events.idle.record(compute_);
  events.arrived.block(compute_);
  events.resumed.record(compute_);
  statistics_.bytes_received += static_cast<Index>(hop.receive.size());
}

void NcclTransport::drain() {
  pending_.require_idle();
  for (std::size_t i = 0; i < hops_.size(); ++i) {
    if (world_.options().enqueues) {
      world_.enqueued(std::move(hops_[i]));
      continue;
    }
    world_.wait(hops_[i], "hop " + std::to_string(i) + " of " + std::to_string(hops_.size()) +
                              ", from rank " + std::to_string(ring().prev()) + ",");
    statistics_.exposed_seconds += hops_[i].resumed.seconds_since(hops_[i].idle);
  }
  hops_.clear();
}

}  // namespace ring_attention
