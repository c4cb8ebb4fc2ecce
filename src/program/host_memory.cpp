#include "program/host_memory.hpp"

#include "cli/table.hpp"
#include "ring_attention/core/tensor.hpp"

namespace ring_attention {

void require_host_memory(const Communicator& comm, Index bytes) {
  agree(comm, [&] {
    if (!allocation::available(bytes))
      throw InputError("rank " + std::to_string(comm.rank()) + " cannot have " + human_bytes(bytes) +
                       " of memory for its shards: use more ranks on more hosts, or a shorter sequence");
  });
}

}  // namespace ring_attention
