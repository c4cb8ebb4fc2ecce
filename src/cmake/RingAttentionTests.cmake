# Whether the tests can be built (RING_ATTENTION_BUILD_TESTS), and what they run under.

# Three time limits, inner to outer: the watchdog of tests/support/mpi_main.cpp (20 s a test),
# mpiexec's own (90 s), CTest's (120 s). The innermost knows most about what hangs.
# Sanitizers slow a program down: RING_ATTENTION_SLOWNESS times as long for the last two, and for the scripts.
set(RING_ATTENTION_SLOWNESS 1)
if(RING_ATTENTION_SANITIZE)
  set(RING_ATTENTION_SLOWNESS 5)
endif()
math(EXPR ring_attention_mpiexec_timeout "90 * ${RING_ATTENTION_SLOWNESS}")
set(RING_ATTENTION_TIME_LIMITS MPIEXEC_TIMEOUT=${ring_attention_mpiexec_timeout}
                               RING_ATTENTION_SLOWNESS=${RING_ATTENTION_SLOWNESS})
set(RING_ATTENTION_TEST_ENVIRONMENT ${RING_ATTENTION_TIME_LIMITS}) # all that the tests plain_mpi.* have
if(NOT RING_ATTENTION_SANITIZE AND CMAKE_SYSTEM_NAME STREQUAL Linux) # a sanitizer wants to be loaded first
  list(APPEND RING_ATTENTION_TEST_ENVIRONMENT
       "LD_PRELOAD=${PROJECT_BINARY_DIR}/tests/libtest_yield_while_waiting.so")
  # A quicker MPI_Init, with messages through UCX alone (tests/support/yield_while_waiting.cpp): for scripts, which start
  # many jobs, and for tests of many ranks. Other tests, and the long ones, have what users have.
  set(RING_ATTENTION_QUICK_START MPIR_CVAR_NOLOCAL=1)
endif()
if(MPI_CXX_LIBRARIES MATCHES "mpich") # MPI_Init asks hwloc for the machine, which costs more than all else that it does
  list(APPEND RING_ATTENTION_TEST_ENVIRONMENT HWLOC_COMPONENTS=no_os,stop)
endif()
if(RING_ATTENTION_SANITIZE)
  # MPI_Init loads hwloc's plugins, and some (OpenCL's) leak when they are unloaded: without them.
  list(APPEND RING_ATTENTION_TEST_ENVIRONMENT RING_ATTENTION_WATCHDOG_SECONDS=60
       HWLOC_PLUGINS_PATH=/)
endif()
if(RING_ATTENTION_SANITIZE MATCHES address) # Clang looks for uses after a return unless it is told, and takes half as long again
  list(APPEND RING_ATTENTION_TEST_ENVIRONMENT ASAN_OPTIONS=detect_stack_use_after_return=0)
endif()
if(RING_ATTENTION_SANITIZE MATCHES thread)
  list(APPEND RING_ATTENTION_TEST_ENVIRONMENT UCX_MEM_EVENTS=n) # UCX's memory hooks deadlock TSan
endif()

set(RING_ATTENTION_BUILD_TESTS OFF)
if(RING_ATTENTION_TESTS)
  find_package(GTest QUIET)
  if(GTest_FOUND)
    set(RING_ATTENTION_BUILD_TESTS ON)
  elseif(RING_ATTENTION_TESTS STREQUAL AUTO)
    message(STATUS "GoogleTest was not found: the tests are left out (`sh setup.sh test` installs it)")
  else()
    message(FATAL_ERROR "GoogleTest was not found. Remedy: `sh setup.sh test`.")
  endif()
endif()
