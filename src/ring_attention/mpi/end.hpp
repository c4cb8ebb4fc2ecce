/// \file
/// The end of a job where MPI cannot be called.
#pragma once

namespace ring_attention {

/// Ends the process with exit code 3, and by it the job, without a call of MPI: for the thread of a watchdog and for signal
/// handlers.
///
/// Hydra, the launcher of MPICH, may lose the exit code of a rank that it finds gone, up to version 4.2.2: the job's is then 0
/// (github.com/pmodels/mpich/issues/7057). So the rank sends it first what MPI_Abort would send, if all ranks are on this host;
/// of several hosts, Hydra would then leave the processes of one that it cannot reach.
[[noreturn]] void end_without_mpi() noexcept;

}  // namespace ring_attention
