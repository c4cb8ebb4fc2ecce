// A library that is preloaded into every test (RingAttentionTests.cmake). It makes MPICH cheaper with more ranks than
// cores. With another MPI library its functions are not called, or do what they should.

#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>

#include <cstdlib>

namespace {

/// The function of this name that this library stands in front of.
template <class Function>
Function* original(const char* name, const char* library) {
  void* next = dlsym(RTLD_NEXT, name);
  if (next == nullptr)
    next = dlsym(dlopen(library, RTLD_LAZY | RTLD_NOLOAD), name);  // a module of Python loads it for itself
  return reinterpret_cast<Function*>(next);
}

}  // namespace

// MPICH's ranks poll while they wait, and never yield. With more ranks than cores a rank that has work then waits for a
// core until the scheduler takes it from a rank that only polls, several milliseconds a message. MPICH polls through
// UCX's ucp_worker_progress. This function of the same name calls it, and yields when nothing arrived. With another
// network layer of MPICH it is never called.
extern "C" unsigned ucp_worker_progress(void* worker) {
  static const auto progress = original<unsigned(void*)>("ucp_worker_progress", "libucp.so.0");
  const unsigned events = progress(worker);
  if (events == 0) sched_yield();
  return events;
}

// Half of MPI_Init on four ranks and two cores is a barrier in shared memory that polls, too, and calls nothing. With
// MPIR_CVAR_NOLOCAL=1 (RingAttentionTests.cmake) MPICH takes each rank for a host of its own, and has no such barrier.
// The ranks of a test are on one machine all the same: then this function says so.
extern "C" int MPI_Comm_split_type(MPI_Comm comm, int type, int key, MPI_Info info, MPI_Comm* host) {
  static const auto split = original<decltype(MPI_Comm_split)>("MPI_Comm_split", "libmpich.so.12");
  static const auto split_type =
      original<decltype(MPI_Comm_split_type)>("MPI_Comm_split_type", "libmpich.so.12");
  const bool no_host = std::getenv("MPIR_CVAR_NOLOCAL") != nullptr && type == MPI_COMM_TYPE_SHARED;
  return no_host ? split(comm, 0, key, host) : split_type(comm, type, key, info, host);
}
