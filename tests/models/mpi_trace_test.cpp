// The assertions of the models, on what rings over MPI really did: at the interface of the transports, and call by call;
// and on transports with the mistakes of the models.

#include <gtest/gtest.h>

#include <array>

#include "models/mpi_calls.hpp"
#include "models/recording.hpp"
#include "ring_attention/ring/transports/odd_even.hpp"
#include "ring_attention/ring/transports/overlapped.hpp"

namespace ring_attention::test {
namespace {

static_assert(std::is_trivially_copyable_v<Event>);

/// The traces of all ranks, on every rank. Collective.
std::vector<Trace> of_all_ranks(const Trace& mine, const Communicator& comm) {
  std::vector<Trace> all(static_cast<std::size_t>(comm.size()));
  for (int rank = 0; rank < comm.size(); ++rank) {
    Trace& theirs = all[static_cast<std::size_t>(rank)];
    if (rank == comm.rank()) theirs = mine;
    auto length = static_cast<int>(theirs.size());
    MPI_Bcast(&length, 1, MPI_INT, rank, comm.handle());
    theirs.resize(static_cast<std::size_t>(length));
    MPI_Bcast(theirs.data(), length * static_cast<int>(sizeof(Event)), MPI_BYTE, rank, comm.handle());
  }
  return all;
}

// ---- the mistakes -----------------------------------------------------------------------------------------

/// All ranks send first, or all receive first. (blocking.pml: SENDS_FIRST, RECEIVES_FIRST)
template <bool sends_first>
class Unordered : public OddEvenTransport {
 public:
  explicit Unordered(const Communicator& comm, int channel = 0)
      : OddEvenTransport(comm, channel), comm_(comm), channel_(channel) {}

  void start(const Exchange& exchange) { exchange_ = exchange; }
  void finish() {
    if (sends_first) send();
    check_mpi(MPI_Recv_c(exchange_.receive.data(), std::ssize(exchange_.receive), MPI_BYTE, ring().prev(),
                         channel_, comm_.handle(), MPI_STATUS_IGNORE));
    if (!sends_first) send();
    check_mpi(MPI_Barrier(comm_.handle()));
  }

 private:
  void send() {
    check_mpi(MPI_Send_c(exchange_.send.data(), std::ssize(exchange_.send), MPI_BYTE, ring().next(), channel_,
                         comm_.handle()));
  }

  const Communicator& comm_;
  int channel_;
  Exchange exchange_;
};

/// finish() waits for the receive, the send, or neither. (overlapped.pml: WAITS)
template <int waits>
class WaitsFor {
 public:
  explicit WaitsFor(const Communicator& comm, int channel = 0) : comm_(comm), channel_(channel) {}

  [[nodiscard]] Ring ring() const { return {comm_.rank(), comm_.size()}; }
  [[nodiscard]] const TransportStatistics& statistics() const { return statistics_; }
  void start(const Exchange& exchange) {
    auto& [receive, send] = hops_.at(hop_);
    check_mpi(MPI_Irecv_c(exchange.receive.data(), std::ssize(exchange.receive), MPI_BYTE, ring().prev(),
                          channel_, comm_.handle(), &receive));
    check_mpi(MPI_Isend_c(exchange.send.data(), std::ssize(exchange.send), MPI_BYTE, ring().next(), channel_,
                          comm_.handle(), &send));
  }
  void progress() {}
  void finish() {
    auto& [receive, send] = hops_.at(hop_);
    if ((waits & 1) != 0) wait(receive);
    if ((waits & 2) != 0) wait(send);
    ++hop_;
  }
  void drain() {  // so that no message is left for the next test
    for (auto& [receive, send] : hops_) {
      wait(receive);
      wait(send);
    }
  }

 private:
  static void wait(MPI_Request& request) {
    for (int done = 0; done == 0;) check_mpi(MPI_Testall(1, &request, &done, MPI_STATUSES_IGNORE));
  }

  struct Hop {
    MPI_Request receive = MPI_REQUEST_NULL, send = MPI_REQUEST_NULL;
  };
  const Communicator& comm_;
  int channel_;
  std::array<Hop, 8> hops_;
  std::size_t hop_ = 0;
  TransportStatistics statistics_;
};

// ---- the tests --------------------------------------------------------------------------------------------

class MpiTraces : public testing::Test {
 protected:
  Communicator comm{MPI_COMM_WORLD};
  Ring at{comm.rank(), comm.size()};

  /// The MPI calls of all ranks in one ring, and its computes.
  template <class Link>
  std::vector<Trace> calls(const LabelledRing& problem = {}, bool is_forward = true) {
    Trace trace;
    mpi_calls::record(&trace, !problem.moves);
    const auto make = [&](int channel) { return Link(comm, channel); };
    if (is_forward)
      forward(trace, problem, at, make);
    else
      backward(trace, problem, at, make);
    mpi_calls::record(nullptr);
    return of_all_ranks(trace, comm);
  }

  /// What all ranks asked of their transports.
  template <class Link>
  std::vector<Trace> hops(const LabelledRing& problem, bool is_forward) {
    Trace trace;
    const auto make = [&](int channel) { return Recorded<Link>(trace, channel, comm, channel); };
    if (is_forward)
      forward(trace, problem, at, make);
    else
      backward(trace, problem, at, make);
    return of_all_ranks(trace, comm);
  }

  template <class Link>
  void expect_right_traces() {
    for (const Index tokens : {2, 2048})  // 48 bytes a shard, and 48 KiB: more than MPI buffers
      for (const Mask& mask : {Mask{}, Mask::causal()})
        for (const bool is_forward : {true, false}) {
          const LabelledRing problem{.mask = mask, .tokens = tokens};
          EXPECT_TRUE(holds(hops<Link>(problem, is_forward)));
          EXPECT_TRUE(holds(calls<Link>(problem, is_forward)));
        }
  }
};

TEST_F(MpiTraces, OfTheBlockingRingHold) { expect_right_traces<OddEvenTransport>(); }
TEST_F(MpiTraces, OfTheOverlappedRingHold) { expect_right_traces<OverlappedTransport>(); }

TEST_F(MpiTraces, ShowThatAllSendFirst) {
  const auto traces = calls<Unordered<true>>();  // it ends: MPI buffers these messages
  EXPECT_EQ(static_cast<bool>(holds(traces)), at.size == 1);
  EXPECT_TRUE(holds(traces, 1)) << "a buffer for one message is enough";
}

TEST_F(MpiTraces, ShowThatAllReceiveFirst) {
  const LabelledRing dry{.moves = false};  // it would not end
  const auto traces = calls<Unordered<false>>(dry);
  EXPECT_EQ(static_cast<bool>(holds(traces)), at.size == 1);
  EXPECT_EQ(static_cast<bool>(holds(traces, 8)), at.size == 1) << "no buffer helps";
}

TEST_F(MpiTraces, ShowAMissingWait) {
  EXPECT_TRUE(holds(calls<WaitsFor<3>>()));
  EXPECT_EQ(static_cast<bool>(holds(calls<WaitsFor<1>>())), at.size <= 2) << "one hop does not show it";
  EXPECT_EQ(static_cast<bool>(holds(calls<WaitsFor<2>>())), at.size == 1);
  EXPECT_EQ(static_cast<bool>(holds(calls<WaitsFor<0>>())), at.size == 1);
}

}  // namespace
}  // namespace ring_attention::test
