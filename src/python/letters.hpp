/// \file
/// `Letters`: the texts by which the ranks of a communicator begin a call together (_meeting.py).
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

/// A rank polls while it waits, so that it can give up: a message that MPI may still read then stays in this object, which
/// has to live as long as the process.
class Letters {
 public:
  /// Duplicates a communicator. Collective.
  /// \throws LateError when not all of its ranks have come to `call` after `timeout`; it does not know which
  Letters(MPI_Comm comm, const std::string& call, Seconds timeout);
  Letters(const Letters&) = delete;
  Letters& operator=(const Letters&) = delete;
  ~Letters();

  /// The duplicate, which returns errors. The calls send on it, too, with other tags than 1 and 2.
  [[nodiscard]] MPI_Comm comm() const { return comm_; }

  void send(int to, std::string text) { send(to, text_tag, std::move(text)); }
  /// The next text of a rank, or none if none has come after that time.
  [[nodiscard]] std::optional<std::string> receive(int from, Seconds seconds);
  /// Tells rank 0 that this rank has given up.
  void withdraw() { send(0, withdrawn_tag, {}); }
  /// Has a rank told this one so?
  [[nodiscard]] bool is_withdrawn() const;

 private:
  static constexpr int text_tag = 1, withdrawn_tag = 2;
  struct Sent {
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void send(int to, int tag, std::string text);

  MPI_Comm comm_;
  std::list<Sent> sent_;  // MPI may still read them
};

}  // namespace ring_attention::python
