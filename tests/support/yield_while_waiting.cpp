// A library that is preloaded into every test (RingAttentionTests.cmake): a rank that waits yields its core.
//
// MPICH's ranks poll while they wait, and never yield. With more ranks than cores a rank that has work then waits for a
// core until the scheduler takes it from a rank that only polls, several milliseconds a message. MPICH polls through
// UCX's ucp_worker_progress. This function of the same name calls it, and yields when nothing arrived. With another MPI
// library, or another network layer of MPICH, it is never called.

#include <dlfcn.h>
#include <sched.h>

namespace {

void* original_function() {
  constexpr const char* name = "ucp_worker_progress";
  if (void* next = dlsym(RTLD_NEXT, name)) return next;
  return dlsym(dlopen("libucp.so.0", RTLD_LAZY | RTLD_NOLOAD),
               name);  // a module of Python has loaded it for itself
}

}  // namespace

extern "C" unsigned ucp_worker_progress(void* worker) {
  static const auto original = reinterpret_cast<unsigned (*)(void*)>(original_function());
  const unsigned events = original(worker);
  if (events == 0) sched_yield();
  return events;
}
