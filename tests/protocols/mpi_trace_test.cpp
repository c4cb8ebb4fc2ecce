// The assertions of the models, on what rings over MPI really did: at the interface of the transports, and call by call;
// and on transports with the mistakes of the models.

#include <gtest/gtest.h>

#include <array>

#include "protocols/mpi_calls.hpp"
#include "protocols/one_sided.hpp"
#include "protocols/recording.hpp"
#include "ring_attention/core/compare.hpp"
#include "ring_attention/core/random.hpp"
#include "ring_attention/cpu/backward.hpp"
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

  void start(const Hop& hop) override { hop_ = hop; }
  void finish() override {
    if (sends_first) send();
    check_mpi(MPI_Recv_c(hop_.receive.data(), std::ssize(hop_.receive), MPI_BYTE, ring().prev(), channel_,
                         comm_.handle(), MPI_STATUS_IGNORE));
    if (!sends_first) send();
    check_mpi(MPI_Barrier(comm_.handle()));
  }

 private:
  void send() {
    check_mpi(MPI_Send_c(hop_.send.data(), std::ssize(hop_.send), MPI_BYTE, ring().next(), channel_,
                         comm_.handle()));
  }

  const Communicator& comm_;
  int channel_;
  Hop hop_;
};

/// finish() waits for the receive, the send, or neither. (overlapped.pml: WAITS)
template <int waits>
class WaitsFor : public Transport {
 public:
  explicit WaitsFor(const Communicator& comm, int channel = 0) : comm_(comm), channel_(channel) {}

  [[nodiscard]] Ring ring() const override { return {comm_.rank(), comm_.size()}; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }
  void start(const Hop& hop) override {
    auto& [receive, send] = hops_.at(hop_);
    check_mpi(MPI_Irecv_c(hop.receive.data(), std::ssize(hop.receive), MPI_BYTE, ring().prev(), channel_,
                          comm_.handle(), &receive));
    check_mpi(MPI_Isend_c(hop.send.data(), std::ssize(hop.send), MPI_BYTE, ring().next(), channel_,
                          comm_.handle(), &send));
  }
  void finish() override {
    auto& [receive, send] = hops_.at(hop_);
    if ((waits & 1) != 0) wait(receive);
    if ((waits & 2) != 0) wait(send);
    ++hop_;
  }
  void drain() override {  // so that no message is left for the next test
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

/// Lends the buffers of all hops at once: no put waits until its buffer is free. (onesided.pml: CREDIT 0)
class NoCredit : public OneSidedTransport {
 public:
  using OneSidedTransport::OneSidedTransport;

  void start(const Hop& exchange) override {
    accept(exchange);
    if (hop() > 0) return;
    const std::array<std::span<const std::byte>, 2> buffers{exchange.receive, exchange.send};
    for (int hop = 0; hop + 1 < ring().size; ++hop)
      give_credit(hop, buffers[static_cast<std::size_t>(hop) % buffers.size()]);
  }
};

/// Lends a buffer when the compute with it has ended, before the own put out of it has. (onesided.pml: CREDIT 1)
class EarlyCredit : public OneSidedTransport {
 public:
  using OneSidedTransport::OneSidedTransport;

  void start(const Hop& exchange) override {
    accept(exchange);
    if (hop() == 0) give_credit(0, exchange.receive);
  }
  void finish() override {
    if (hop() + 2 < ring().size) give_credit(hop() + 1, exchange().send);
    OneSidedTransport::finish();
  }
};

/// Raises the signal before the data are there. (onesided.pml: NO_ORDER)
class EarlySignal : public OneSidedTransport {
 public:
  using OneSidedTransport::OneSidedTransport;

  void finish() override {
    wait_for_credit();
    signal();
    end_put();
    wait_for_signal();
  }
};

// ---- the tests --------------------------------------------------------------------------------------------

class MpiTraces : public testing::Test {
 protected:
  Communicator comm{MPI_COMM_WORLD};
  Ring at{comm.rank(), comm.size()};

  void run(Trace& trace, const LabelledRing& problem, bool is_forward, const MakeLink& make) const {
    if (is_forward)
      forward(trace, problem, at, make);
    else
      backward(trace, problem, at, make);
  }

  /// The MPI calls of all ranks in one ring, and its computes.
  template <class Link>
  std::vector<Trace> calls(const LabelledRing& problem = {}, bool is_forward = true) {
    Trace trace;
    mpi_calls::record(&trace, !problem.moves);
    run(trace, problem, is_forward, [&](int channel) { return std::make_unique<Link>(comm, channel); });
    mpi_calls::record(nullptr);
    return of_all_ranks(trace, comm);
  }

  /// What all ranks asked of their transports.
  template <class Link>
  std::vector<Trace> hops(const LabelledRing& problem, bool is_forward) {
    Trace trace;
    run(trace, problem, is_forward, [&](int channel) {
      return std::make_unique<Recorded>(trace, channel, std::make_unique<Link>(comm, channel));
    });
    return of_all_ranks(trace, comm);
  }

  /// What all ranks put, and when.
  template <class Link>
  std::vector<Trace> puts(const LabelledRing& problem = {}, bool is_forward = true) {
    Trace trace;
    run(trace, problem, is_forward,
        [&](int channel) { return std::make_unique<Link>(trace, comm, channel); });
    return of_all_ranks(trace, comm);
  }

  void for_each_problem(const auto& visit) {
    for (const Index tokens : {2, 2048})  // 48 bytes a shard, and 48 KiB: more than MPI buffers
      for (const Mask& mask : {Mask{}, Mask::causal()})
        for (const bool is_forward : {true, false}) {
          const LabelledRing problem{.mask = mask, .tokens = tokens};
          visit(problem, is_forward);
        }
  }
  template <class Link>
  void expect_right_traces() {
    for_each_problem([&](const LabelledRing& problem, bool is_forward) {
      EXPECT_TRUE(holds(hops<Link>(problem, is_forward)));
      EXPECT_TRUE(holds(calls<Link>(problem, is_forward)));
    });
  }

  /// out and lse, dQ, dK and dV of this rank, causal.
  std::array<Tensor<float>, 5> attend(const MakeLink& make) {
    const Shape shape{1, 2, 13, 4};
    const Placement tokens(PlacementKind::zigzag, shape.seq, at.size);
    const Scoring scoring{0.5, Mask::causal()};
    const auto random = [&](std::uint64_t stream, View<float> array) {
      fill_random(array, {.stream = stream}, shape, tokens.ranges(at.rank));
    };
    const auto parcel = [&] {
      KvParcel<float> kv(shape, tokens, at.rank);
      random(1, kv.k());
      random(2, kv.v());
      return kv;
    };
    Tensor<float> q(shape.with_seq(tokens.tokens(at.rank))), grad_out(q.shape());
    random(0, q.view());
    random(3, grad_out.view());
    KvParcel<float> kv = parcel(), again = parcel(), gradients(shape, tokens, at.rank);
    CpuEngine<float> engine(scoring);
    engine.begin(q, tokens.ranges(at.rank));
    const auto transport = make(0);
    ring_forward(engine, *transport, kv);
    AttentionResult<float> attended = engine.finish();
    CpuBackward<float> backward(scoring);
    backward.begin({q, attended.out, attended.lse, grad_out}, tokens.ranges(at.rank));
    const auto kv_transport = make(0);
    const auto gradient_transport = make(1);
    ring_backward(backward, *kv_transport, *gradient_transport, again, gradients);
    return {std::move(attended.out), std::move(attended.lse), backward.finish(),
            converted<float>(View<const float>(gradients.k())),
            converted<float>(View<const float>(gradients.v()))};
  }
};

TEST_F(MpiTraces, OfTheBlockingRingHold) { expect_right_traces<OddEvenTransport>(); }
TEST_F(MpiTraces, OfTheOverlappedRingHold) { expect_right_traces<OverlappedTransport>(); }

TEST_F(MpiTraces, OfTheOneSidedRingHold) {
  for_each_problem([&](const LabelledRing& problem, bool is_forward) {
    EXPECT_TRUE(holds(puts<OneSidedTransport>(problem, is_forward)));
  });
}

TEST_F(MpiTraces, TheOneSidedRingHasTheBitsOfMessages) {
  Trace trace;
  const auto puts =
      attend([&](int channel) { return std::make_unique<OneSidedTransport>(trace, comm, channel); });
  const auto messages =
      attend([&](int channel) { return std::make_unique<OverlappedTransport>(comm, channel); });
  for (std::size_t i = 0; i < puts.size(); ++i) EXPECT_TRUE(bitwise_equal(puts[i], messages[i])) << i;
}

TEST_F(MpiTraces, ShowPutsThatDoNotWait) {
  EXPECT_EQ(static_cast<bool>(holds(puts<NoCredit>())), at.size <= 2) << "one hop does not show it";
  EXPECT_EQ(static_cast<bool>(holds(puts<EarlyCredit>())), at.size <= 2) << "one hop does not show it";
  EXPECT_EQ(static_cast<bool>(holds(puts<EarlySignal>())), at.size == 1);
}

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
