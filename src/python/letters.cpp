#include "python/letters.hpp"

#include <memory>
#include <utility>

#include "ring_attention/core/text.hpp"
#include "ring_attention/ring/transports/mpi_message.hpp"

namespace ring_attention::python {
namespace {

/// Asks again and again until done(). \returns false when that takes longer
bool poll(Seconds seconds, const auto& done) {
  const auto begin = std::chrono::steady_clock::now();
  for (int polls = 1; !done(); ++polls) {
    if (Seconds(std::chrono::steady_clock::now() - begin) > seconds) return false;
    back_off(polls);
  }
  return true;
}

bool is_complete(MPI_Request& request) {
  int done = 0;
  check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
  return done != 0;
}

/// \throws LateError
MPI_Comm duplicate(MPI_Comm comm, const std::string& call, Seconds timeout) {
  auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(comm, copy.get(), &request));
  if (poll(timeout, [&] { return is_complete(request); })) return *copy;
  static_cast<void>(copy.release());  // NOLINT: MPI may still write it
  int rank = 0, size = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  std::string others;
  for (int other = 0; other < size; ++other)
    if (other != rank) others += (others.empty() ? "" : ", ") + std::to_string(other);
  throw LateError(
      format("%s: waited %g s for %srank %s, which did not make this call with this communicator. All ranks "
             "make the "
             "same calls; a rank that needs longer needs a longer RING_ATTENTION_TIMEOUT",
             call.c_str(), timeout.count(), size > 2 ? "at least one of " : "", others.c_str()));
}

}  // namespace

Letters::Letters(MPI_Comm comm, const std::string& call, Seconds timeout)
    : comm_(duplicate(comm, call, timeout)) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
}

Letters::~Letters() {
  for (Sent& one : sent_) MPI_Wait(&one.request, MPI_STATUS_IGNORE);
  MPI_Comm_free(&comm_);
}

void Letters::send(int to, int tag, std::string text) {
  sent_.remove_if([](Sent& one) { return is_complete(one.request); });
  Sent& one = sent_.emplace_back(std::move(text));
  check_mpi(MPI_Isend_c(one.text.data(), std::ssize(one.text), MPI_BYTE, to, tag, comm_, &one.request));
}

std::optional<std::string> Letters::receive(int from, Seconds seconds) {
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  const bool came = poll(seconds, [&] {
    check_mpi(MPI_Improbe(from, text_tag, comm_, &found, &message, &status));
    return found != 0;
  });
  if (!came) return {};
  MPI_Count bytes = 0;
  check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &bytes));
  std::string text(static_cast<std::size_t>(bytes), '\0');
  check_mpi(MPI_Mrecv_c(text.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE));
  return text;
}

bool Letters::is_withdrawn() const {
  int found = 0;
  for (int polls = 0; polls < 10 && found == 0;
       ++polls)  // MPI does not always show a message at the first poll
    check_mpi(MPI_Iprobe(MPI_ANY_SOURCE, withdrawn_tag, comm_, &found, MPI_STATUS_IGNORE));
  return found != 0;
}

}  // namespace ring_attention::python
