/// \file
/// Memory that a rank needs, held against what it can have, before anything is allocated.
#pragma once

#include <string>

#include "cli/device_options.hpp"
#include "cli/table.hpp"
#include "ring_attention/core/allocation.hpp"
#include "ring_attention/mpi/agreement.hpp"

namespace ring_attention {

/// \throws AgreedError when one rank cannot have `bytes` for its shards. Collective.
/// \param of_which  behind the bytes, or empty
inline void require_host_memory(const Communicator& comm, Index bytes, const std::string& of_which = "") {
  agree(comm, [&] {
    if (!allocation::available(bytes))
      throw InputError("rank " + std::to_string(comm.rank()) + " cannot have " + human_bytes(bytes) +
                       " of memory for its shards" + of_which +
                       ": use more ranks on more hosts, or a shorter sequence");
  });
}

/// The least that a rank holds: its part of q, k and v, a slope for each head, and where its tiles begin. Refuses what is far
/// too large before the lists of heads and of tiles are made.
inline void require_least_memory(const Communicator& comm, const Shape& q, const KvShape& kv,
                                 const SameBitsFlags& bits) {
  const Index tiles = bits.same_bits ? (q.seq + kv.seq) / bits.tile_of_same_bits() : 0,
              number = sizeof(double);
  require_host_memory(comm, static_cast<Index>(sizeof(float)) * (q.size() + kv.elements()) / comm.size() +
                                number * (q.heads + tiles));
}

}  // namespace ring_attention
