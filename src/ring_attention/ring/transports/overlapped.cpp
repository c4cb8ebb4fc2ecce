#include "ring_attention/ring/transports/overlapped.hpp"

#include "ring_attention/ring/transports/mpi_message.hpp"

namespace ring_attention {
void OverlappedTransport::start(const Hop& hop) {
  pending_.start(hop);
  done_ = false;
  // The receive first: a message whose receive is posted needs no extra copy.
  if (!hop.receive.empty())
    check_mpi(MPI_Irecv_c(hop.receive.data(), std::ssize(hop.receive), MPI_BYTE, ring().prev(), channel_,
                          comm_.handle(), &requests_[0]));
  if (hop.send.empty()) return;
  check_mpi(MPI_Isend_c(hop.send.data(), std::ssize(hop.send), MPI_BYTE, ring().next(), channel_,
                        comm_.handle(), &requests_[1]));
  count_sent(statistics_, hop.send);
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
  const double begin = MPI_Wtime();
  const Hop& hop = pending_.finish();
  for (int calls = 1; !arrived(); ++calls) back_off(calls);
  if (!hop.receive.empty()) check_received(statistics_, statuses_[0], hop.receive, ring().prev());
  statistics_.exposed_seconds += MPI_Wtime() - begin;
}

}  // namespace ring_attention
