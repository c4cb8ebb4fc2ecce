/// \file
/// `Rendezvous`: how the ranks of a communicator begin a call collectively, or how each gets an error.
#pragma once

#include <mpi.h>

#include <chrono>
#include <list>
#include <optional>
#include <string>

#include "ring_attention/core/error.hpp"

namespace ring_attention::python {

using Seconds = std::chrono::duration<double>;

/// A rank has not come to a call in time.
class LateError : public Error {
 public:
  using Error::Error;
};

/// Every rank sends its call to rank 0, and rank 0 sends its verdict to all. A rank polls while it waits, so that it can give
/// up: a message that MPI may still read then stays in this object, which has to live as long as the process.
class Rendezvous {
 public:
  /// Duplicates a communicator. Collective.
  /// \throws LateError when not all of its ranks have come to `call` after `timeout`; it does not know which
  Rendezvous(MPI_Comm comm, const std::string& call, Seconds timeout);
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;
  ~Rendezvous();

  /// The duplicate, which returns errors. The calls send on it, too, with other tags than 1.
  [[nodiscard]] MPI_Comm comm() const { return comm_; }

  /// Returns what rank 0 announces, when all ranks make the same call and none has a problem. Collective.
  ///
  /// \param call     one line
  /// \param problem  of this rank alone; empty: none
  /// \param news     what rank 0 announces
  /// \throws AgreedError, the same on all ranks, with the problem of the lowest rank that has one, or else with the lowest
  ///         rank that makes another call than rank 0
  /// \throws LateError when the other ranks have not come `timeout` after rank 0, or rank 0 not `timeout` after this rank.
  ///         It names who is missing. A rank that comes later throws it, too. (Rank 0 that comes in the moment in which another
  ///         rank gives up may find itself in the call alone, where a watchdog ends the job.)
  std::string begin(const std::string& call, const std::string& problem, const std::string& news,
                    Seconds timeout);

 private:
  struct Sent {
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  struct Received {
    int from;
    std::string text;
  };

  void send(int to, std::string text);
  void send_to_others(const std::string& text);
  std::optional<Received> receive();
  std::string verdict_of_rank_0(const std::string& call, std::string mine, const std::string& news,
                                Seconds timeout);
  std::string verdict_from_rank_0(const std::string& call, std::string mine, Seconds timeout);

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  std::list<Sent> sent_;  // MPI may still read them
};

}  // namespace ring_attention::python
