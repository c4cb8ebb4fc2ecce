/// \file
/// How ranks agree on bad input, and how they end together.
///
/// Two kinds of errors, kept apart:
/// - Anything every rank can check goes through `agree`: all ranks learn of the first failure, all throw
///   the same AgreedError, rank 0 prints one line, all finalise, exit code 2.
/// - A failure on one rank only (any other exception) ends the job: that rank prints `[rank r] what` and
///   calls MPI_Abort. It must never finalise, because its peers would then wait forever.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "ring_attention/core/error.hpp"
#include "ring_attention/core/shape.hpp"
#include "ring_attention/mpi/communicator.hpp"

namespace ring_attention {

/// Bad input that all ranks report together, with the same text.
class AgreedError : public InputError {
 public:
  using InputError::InputError;
};

/// How ranks meet: each bit becomes 1 where it is 1 on any rank. All pass equally many bytes. Collective.
using Unite = std::function<void(std::span<std::byte> bytes)>;

/// Runs `validate` on every rank. If any rank threw InputError or std::filesystem::filesystem_error (or had no memory), all
/// ranks throw AgreedError with the message of the lowest such rank. Collective.
void agree(int rank, int size, const Unite& unite, const std::function<void()>& validate);
void agree(const Communicator& comm, const std::function<void()>& validate);

/// The text that rank `root` passes. Collective.
[[nodiscard]] std::string text_of(int root, int rank, const Unite& unite, std::string text);

/// Throws AgreedError on all ranks unless all passed the same value. The message names the field, the value
/// of rank 0 and the lowest rank that differs. Collective.
void require_same(const Communicator& comm, const std::string& field, const std::string& value);
inline void require_same(const Communicator& comm, const std::string& field, Index value) {
  require_same(comm, field, std::to_string(value));
}

/// Throws AgreedError unless the world has `promised` ranks (0: no promise). A launcher that belongs to
/// another MPI starts four worlds of one rank instead of one world of four, and all four would "pass".
void require_world_size(const Communicator& comm, Index promised);

/// The main program under MPI: initialises, runs `body`, finalises, and returns the exit code for all
/// ranks. `body` returns the rank's own code; the largest one is returned everywhere.
int mpi_main(int& argc, char**& argv, const std::function<int(const Communicator&)>& body);

}  // namespace ring_attention
