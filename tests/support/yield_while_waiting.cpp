// A library that is preloaded into every test (RingAttentionTests.cmake): a rank that waits yields its core.
//
// MPICH's ranks poll while they wait, and never yield. With more ranks than cores a rank that has work then waits for a
// core until the scheduler takes it from a rank that only polls, several milliseconds a message. MPICH polls through
// UCX's ucp_worker_progress. This function of the same name calls it, and yields when nothing arrived. With another MPI
// library, or another network layer of MPICH, it is never called.

#include <dlfcn.h>
#include <sched.h>

extern "C" unsigned ucp_worker_progress(void* worker) {
  static const auto original = reinterpret_cast<unsigned (*)(void*)>(dlsym(RTLD_NEXT, "ucp_worker_progress"));
  const unsigned events = original(worker);
  if (events == 0) sched_yield();
  return events;
}
