# add_script_test(<label>/<name> <script> [LONG] [PROCESSORS n] [TIMEOUT s] [COST s] [ARGS argument...])
# A script of this folder (*.sh by sh, *.py by tests/script.py; standard library, NumPy and pytest): the test
# <label>.<name>. It finds in its environment RING_ATTENTION_SOURCE and RING_ATTENTION_BUILD (the
# two folders) and MPIRUN (the launcher). Exit code 77 means skipped; it says why on standard output.
# LONG: it is a test of `make test-long`, and its last argument is `long`, with which most scripts try more cases.
# COST is about how many seconds it takes: CTest starts the longest tests first.
function(add_script_test test script)
  cmake_parse_arguments(PARSE_ARGV 2 arg "LONG" "PROCESSORS;TIMEOUT;COST" "ARGS")
  string(REPLACE "/" "." name "${test}")
  string(REGEX REPLACE "/.*" "" labels "${test}")
  if(arg_LONG)
    list(APPEND labels long)
    list(APPEND arg_ARGS long)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_COST)
    set(arg_COST 0)
  endif()
  if(script MATCHES "\\.py$")
    if(NOT Python3_FOUND)
      message(STATUS "python3 was not found: the test ${name} is left out")
      return()
    endif()
    set(interpreter "${Python3_EXECUTABLE}" "${PROJECT_SOURCE_DIR}/tests/script.py")
  else()
    set(interpreter sh)
  endif()
  add_test(NAME ${name} COMMAND ${interpreter} "${CMAKE_CURRENT_SOURCE_DIR}/${script}" ${arg_ARGS})
  ring_attention_test_properties(${name} "${labels}" ${arg_PROCESSORS} ${arg_TIMEOUT})
  set_property(
    TEST ${name} APPEND
    PROPERTY ENVIRONMENT "RING_ATTENTION_SOURCE=${PROJECT_SOURCE_DIR}"
             "RING_ATTENTION_BUILD=${PROJECT_BINARY_DIR}" "MPIRUN=${RING_ATTENTION_MPIRUN}")
  if(NOT arg_LONG AND NOT labels STREQUAL mpi)
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT ${RING_ATTENTION_QUICK_START})
  endif()
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 COST ${arg_COST})
endfunction()

# add_left_out_test(<label>/<name> <reason>): in place of the tests of a folder that this build does not have, a test that
# is skipped for this reason
function(add_left_out_test test reason)
  string(REPLACE "/" "." name "${test}")
  string(REGEX REPLACE "/.*" "" label "${test}")
  add_test(NAME ${name} COMMAND "${CMAKE_COMMAND}" -E echo "skipped: ${reason}")
  set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "^skipped: " LABELS "${label}")
endfunction()
