// The MPI calls of this process, recorded by MPI's profiling interface. Channels are tags.
#pragma once

#include "protocols/trace.hpp"

namespace ring_attention::test::mpi_calls {

/// From here on calls are recorded into `trace`; null: no longer. \param dry  they are recorded, and not made
void record(Trace* trace, bool dry = false);

}  // namespace ring_attention::test::mpi_calls
