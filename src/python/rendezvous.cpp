#include "python/rendezvous.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "ring_attention/core/text.hpp"
#include "ring_attention/mpi/agreement.hpp"
#include "ring_attention/ring/transports/mpi_message.hpp"

namespace ring_attention::python {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int tag = 1;
/// What a rank sends to rank 0 when it gives up a call that it has sent before. A call has a line end.
const std::string withdrawn = "withdrawn";

/// The first character of what rank 0 sends; its news or the text of an error follows.
enum Verdict : char { go = 'g', here = 'h', refused = 'r', late = 'l' };

/// What a rank sends: a line with its call, then its problem.
struct Arrival {
  explicit Arrival(const std::string& text)
      : call(text.substr(0, text.find('\n'))), problem(text.substr(call.size() + 1)) {}

  std::string call, problem;
};

/// \param texts  of all ranks
std::string verdict_on(const std::vector<std::string>& texts, const std::string& news) {
  const std::vector<Arrival> ranks(texts.begin(), texts.end());
  const auto number = [&](auto found) { return std::to_string(found - ranks.begin()); };
  const auto hindered = std::ranges::find_if(ranks, [](const Arrival& one) { return !one.problem.empty(); });
  if (hindered != ranks.end())
    return std::string{refused} + "rank " + number(hindered) + ": " + hindered->problem;
  const std::string& due = ranks.front().call;
  const auto other = std::ranges::find_if(ranks, [&](const Arrival& one) { return one.call != due; });
  if (other != ranks.end())
    return std::string{refused} + "the ranks disagree on the call: rank 0 has " + due + ", rank " +
           number(other) + " has " + other->call;
  return std::string{go} + news;
}

/// All ranks but one.
std::vector<int> others(int size, int rank) {
  std::vector<int> ranks;
  for (int other = 0; other < size; ++other)
    if (other != rank) ranks.push_back(other);
  return ranks;
}

/// \param which  empty, or words about the ranks and about the call
std::string late_text(const std::string& call, const std::vector<int>& missing, Seconds timeout,
                      const char* which = "", const char* how = "") {
  std::string ranks;
  for (const int rank : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  return format(
      "%c%s: waited %g s for %srank %s, which did not make this call%s. All ranks make the same calls; a "
      "rank that needs longer needs a longer RING_ATTENTION_TIMEOUT",
      late, call.c_str(), timeout.count(), which, ranks.c_str(), how);
}

/// \throws LateError
MPI_Comm duplicate(MPI_Comm comm, const std::string& call, Seconds timeout) {
  auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(comm, copy.get(), &request));
  const auto begin = Clock::now();
  for (int polls = 1; Seconds(Clock::now() - begin) <= timeout; ++polls) {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done != 0) return *copy;
    back_off(polls);
  }
  static_cast<void>(copy.release());  // NOLINT: MPI may still write it
  int rank = 0, size = 1;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  throw LateError(late_text(call, others(size, rank), timeout, size > 2 ? "at least one of " : "",
                            " with this communicator")
                      .substr(1));
}

}  // namespace

Rendezvous::Rendezvous(MPI_Comm comm, const std::string& call, Seconds timeout)
    : comm_(duplicate(comm, call, timeout)) {
  check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
  check_mpi(MPI_Comm_rank(comm_, &rank_));
  check_mpi(MPI_Comm_size(comm_, &size_));
}

Rendezvous::~Rendezvous() {
  for (Sent& one : sent_) MPI_Wait(&one.request, MPI_STATUS_IGNORE);
  MPI_Comm_free(&comm_);
}

void Rendezvous::send(int to, std::string text) {
  Sent& one = sent_.emplace_back(std::move(text));
  check_mpi(MPI_Isend_c(one.text.data(), std::ssize(one.text), MPI_BYTE, to, tag, comm_, &one.request));
}

void Rendezvous::send_to_others(const std::string& text) {
  for (const int rank : others(size_, 0)) send(rank, text);
}

std::optional<Rendezvous::Received> Rendezvous::receive() {
  sent_.remove_if([](Sent& one) {
    int done = 0;
    check_mpi(MPI_Test(&one.request, &done, MPI_STATUS_IGNORE));
    return done != 0;
  });
  int found = 0;
  MPI_Message message = MPI_MESSAGE_NULL;
  MPI_Status status;
  check_mpi(MPI_Improbe(MPI_ANY_SOURCE, tag, comm_, &found, &message, &status));
  if (found == 0) return {};
  MPI_Count bytes = 0;
  check_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &bytes));
  Received received{status.MPI_SOURCE, std::string(static_cast<std::size_t>(bytes), '\0')};
  check_mpi(MPI_Mrecv_c(received.text.data(), bytes, MPI_BYTE, &message, MPI_STATUS_IGNORE));
  return received;
}

std::string Rendezvous::verdict_of_rank_0(const std::string& call, std::string mine, const std::string& news,
                                          Seconds timeout) {
  std::vector<std::string> texts(static_cast<std::size_t>(size_));
  texts[0] = std::move(mine);
  std::vector<int> missing = others(size_, 0);

  const auto begin = Clock::now();
  bool told = false;
  for (int polls = 1; !missing.empty(); ++polls) {
    const Seconds waited = Clock::now() - begin;
    if (std::optional<Received> received = receive()) {
      if (received->text == withdrawn) return late_text(call, {0}, timeout);
      std::erase(missing, received->from);
      texts[static_cast<std::size_t>(received->from)] = std::move(received->text);
    } else if (waited > timeout) {
      return late_text(call, missing, timeout);
    } else if (!told && waited > std::min(timeout / 4, Seconds(0.05))) {
      told = true;
      send_to_others({here});
    } else {
      back_off(polls);
    }
  }
  for (int polls = 0; polls < 10; ++polls)  // MPI does not always show a message at the first poll
    if (const std::optional<Received> received = receive(); received && received->text == withdrawn)
      return late_text(call, {0}, timeout);
  return verdict_on(texts, news);
}

std::string Rendezvous::verdict_from_rank_0(const std::string& call, std::string mine, Seconds timeout) {
  send(0, std::move(mine));
  auto begin = Clock::now();
  for (int polls = 1; Seconds(Clock::now() - begin) <= timeout; ++polls) {
    if (std::optional<Received> received = receive()) {
      if (received->text.front() != here) return received->text;
      begin = Clock::now();  // rank 0 is here; it gives up before this rank does
    } else {
      back_off(polls);
    }
  }
  send(0, withdrawn);
  return late_text(call, {0}, timeout);
}

std::string Rendezvous::begin(const std::string& call, const std::string& problem, const std::string& news,
                              Seconds timeout) {
  const bool decides = rank_ == 0;
  std::string mine = call + '\n' + problem;
  const std::string verdict = decides ? verdict_of_rank_0(call, std::move(mine), news, timeout)
                                      : verdict_from_rank_0(call, std::move(mine), timeout);
  if (decides) send_to_others(verdict);
  if (verdict.front() == refused) throw AgreedError(verdict.substr(1));
  if (verdict.front() == late) throw LateError(verdict.substr(1));
  return verdict.substr(1);
}

}  // namespace ring_attention::python
