// A ring of puts over MPI windows, which records what it does: the transport that onesided.pml models.
#pragma once

#include <map>
#include <utility>

#include "protocols/trace.hpp"
#include "ring_attention/mpi/collectives.hpp"
#include "ring_attention/ring/transports/mpi_message.hpp"
#include "ring_attention/ring/transports/pending_hop.hpp"

namespace ring_attention::test {

/// A rank puts its parcel into the memory of the next rank, and then raises its signal. It may begin when it has the credit
/// of the next rank: the address of a buffer that is free there. Credits and signals are numbers in a window, a pair for
/// each hop; a rank reads its own.
///
/// The trace has the messages of a hop in the words of the other transports: a credit lends memory for a receive, a put
/// waits for it, and its signal ends the receive.
class OneSidedTransport : public Transport {
 public:
  OneSidedTransport(Trace& trace, const Communicator& comm, int channel)
      : trace_(trace), comm_(comm), channel_(channel) {
    const MPI_Aint bytes = MPI_Aint{2} * ring().size * static_cast<MPI_Aint>(sizeof(MPI_Aint));
    check_mpi(MPI_Win_create_dynamic(MPI_INFO_NULL, comm.handle(), &memory_));
    check_mpi(MPI_Win_allocate(bytes, sizeof(MPI_Aint), MPI_INFO_NULL, comm.handle(), &words_, &window_));
    std::fill_n(words_, 2 * ring().size, MPI_Aint{0});
    barrier(comm);
    check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, memory_));
    check_mpi(MPI_Win_lock_all(MPI_MODE_NOCHECK, window_));
  }
  /// Collective, as the constructor.
  ~OneSidedTransport() override {
    for (MPI_Win* window : {&memory_, &window_}) (void)MPI_Win_unlock_all(*window);
    barrier(comm_);
    for (const auto& [begin, bytes] : attached_) (void)MPI_Win_detach(memory_, begin);
    for (MPI_Win* window : {&memory_, &window_}) (void)MPI_Win_free(window);
  }

  [[nodiscard]] Ring ring() const override { return {comm_.rank(), comm_.size()}; }
  [[nodiscard]] const TransportStatistics& statistics() const override { return statistics_; }

  void start(const Hop& exchange) override {
    accept(exchange);
    give_credit(hop_, exchange.receive);  // finish() has ended the put out of this buffer
  }
  void progress() override { begin_put(); }
  void finish() override {
    wait_for_credit();
    end_put();
    signal();
    wait_for_signal();
  }
  void drain() override { pending_.require_idle(); }

 protected:
  enum class Word { credit, signal };

  void accept(const Hop& exchange) {
    pending_.start(exchange);
    exchange_ = exchange;
    put_ = exchange.send.empty();
    attach(exchange.send);
    attach(exchange.receive);
  }
  /// Lends this memory to the put of a hop.
  void give_credit(int hop, std::span<const std::byte> memory) {
    if (memory.empty()) return;
    MPI_Aint address = 0;
    check_mpi(MPI_Get_address(memory.data(), &address));
    trace_.push_back({Act::lend, Side::receive, channel_, memory.data(), memory.size()});
    trace_.push_back({Act::post, Side::receive, channel_});
    write(ring().prev(), hop, Word::credit, address);
  }
  /// Begins the put of this hop if there is a credit and it has not begun.
  void begin_put() {
    const MPI_Aint address = put_ ? 0 : read(Word::credit);
    if (address == 0) return;
    const std::span<const std::byte> send = exchange_.send;
    trace_.push_back({Act::wait, Side::send, channel_});
    trace_.push_back({Act::put, Side::send, channel_, send.data(), send.size()});
    check_mpi(MPI_Put_c(send.data(), std::ssize(send), MPI_BYTE, ring().next(), address, std::ssize(send),
                        MPI_BYTE, memory_));
    count_sent(statistics_, send);
    put_ = true;
  }
  void wait_for_credit() {
    for (int calls = 1; !put_; ++calls) {
      begin_put();
      back_off(calls);
    }
  }
  /// Waits until the data are in the memory of the next rank.
  void end_put() {
    if (exchange_.send.empty()) return;
    check_mpi(MPI_Win_flush(ring().next(), memory_));
    trace_.push_back({Act::give_back, Side::send, channel_});
  }
  void signal() {
    if (exchange_.send.empty()) return;
    trace_.push_back({Act::post, Side::send, channel_});
    write(ring().next(), hop_, Word::signal, 1);
  }
  /// The end of the hop.
  void wait_for_signal() {
    (void)pending_.finish();
    if (!exchange_.receive.empty()) {
      for (int calls = 1; read(Word::signal) == 0; ++calls) back_off(calls);
      for (const Act act : {Act::wait, Act::give_back}) trace_.push_back({act, Side::receive, channel_});
      statistics_.bytes_received += std::ssize(exchange_.receive);
    }
    ++hop_;
  }
  [[nodiscard]] int hop() const { return hop_; }
  [[nodiscard]] const Hop& exchange() const { return exchange_; }

 private:
  /// The next rank's puts may go there. The parcels of a ring are in the same buffers again and again.
  void attach(std::span<const std::byte> memory) {
    auto* begin = const_cast<std::byte*>(memory.data());
    if (memory.empty() || attached_[begin] >= memory.size()) return;
    if (attached_[begin] > 0) check_mpi(MPI_Win_detach(memory_, begin));
    check_mpi(MPI_Win_attach(memory_, begin, std::ssize(memory)));
    attached_[begin] = memory.size();
  }
  [[nodiscard]] static MPI_Aint place(int hop, Word word) { return 2 * hop + static_cast<int>(word); }
  void write(int rank, int hop, Word word, MPI_Aint value) const {
    check_mpi(MPI_Accumulate(&value, 1, MPI_AINT, rank, place(hop, word), 1, MPI_AINT, MPI_REPLACE, window_));
    check_mpi(MPI_Win_flush(rank, window_));
  }
  /// Of this rank and hop.
  [[nodiscard]] MPI_Aint read(Word word) const {
    MPI_Aint none = 0, value = 0;
    check_mpi(MPI_Fetch_and_op(&none, &value, MPI_AINT, ring().rank, place(hop_, word), MPI_NO_OP, window_));
    check_mpi(MPI_Win_flush(ring().rank, window_));
    return value;
  }

  Trace& trace_;
  const Communicator& comm_;
  int channel_, hop_ = 0;
  MPI_Win memory_ = MPI_WIN_NULL, window_ = MPI_WIN_NULL;  // the buffers of the parcels; credits and signals
  MPI_Aint* words_ = nullptr;
  std::map<std::byte*, std::size_t> attached_;
  Hop exchange_;
  bool put_ = true;  // the put of this hop has begun, or there is none
  PendingHop pending_;
  TransportStatistics statistics_;
};

}  // namespace ring_attention::test
