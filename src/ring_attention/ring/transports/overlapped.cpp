#include "ring_attention/ring/transports/overlapped.hpp"

#include <sched.h>
#include <unistd.h>

#include <chrono>

#include "ring_attention/ring/transports/mpi_message.hpp"

namespace ring_attention {
namespace {

/// Waits longer each time: first not at all, then one yield to the scheduler, then 20 microseconds.
class BackOff {
 public:
  void pause() {
    ++calls_;
    if (calls_ > 300)
      usleep(20);
    else if (calls_ > 100)
      sched_yield();
  }

 private:
  int calls_ = 0;
};

}  // namespace

void OverlappedTransport::start(const Exchange& exchange) {
  pending_.start(exchange);
  done_ = false;
  // The receive first: a message whose receive is posted needs no extra copy.
  check_mpi(MPI_Irecv_c(exchange.receive.data(), message_length(exchange.receive), MPI_BYTE, ring().prev(),
                        channel_, comm_.handle(), &requests_[0]));
  check_mpi(MPI_Isend_c(exchange.send.data(), message_length(exchange.send), MPI_BYTE, ring().next(),
                        channel_, comm_.handle(), &requests_[1]));
  count_sent(statistics_, exchange.send);
}

bool OverlappedTransport::arrived() {
  if (done_) return true;
  int flag = 0;
  check_mpi(MPI_Testall(2, requests_.data(), &flag, statuses_.data()));
  done_ = flag != 0;
  return done_;
}

void OverlappedTransport::progress() {
  if (pending_.pending()) (void)arrived();
}

void OverlappedTransport::finish() {
  const auto begin = std::chrono::steady_clock::now();
  const Exchange& exchange = pending_.finish();
  for (BackOff back_off; !arrived();) back_off.pause();
  check_received(statistics_, statuses_[0], exchange.receive, ring().prev());
  statistics_.exposed_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace ring_attention
