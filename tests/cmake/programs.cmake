# The GoogleTest programs. Each folder has one program a kind: test_<folder> in one process, test_<folder>_mpi on several
# ranks. CTest runs a program once for each of its source files, and names a test after the file.
#
# A file's tests are selected by `--source=<path below tests>` (support/select_source.hpp).

add_library(test_yield_while_waiting SHARED support/yield_while_waiting.cpp) # preloaded: RingAttentionTests.cmake
target_include_directories(test_yield_while_waiting SYSTEM
                           PRIVATE $<TARGET_PROPERTY:MPI::MPI_CXX,INTERFACE_INCLUDE_DIRECTORIES>) # no library: it is loaded everywhere
target_link_libraries(test_yield_while_waiting PRIVATE ${CMAKE_DL_LIBS})

add_custom_target(unit_tests) # builds what has the label unit
add_dependencies(unit_tests test_yield_while_waiting)

# Most of the time that a test needs is spent on compiling it, not on running it. So tests are compiled with -O1, and
# with -O0 where sanitizers make them three times as long to compile (the library under test is not); GoogleTest and
# Eigen are compiled once, into one precompiled header that all test programs use.
function(ring_attention_compile_as_test target)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  if(RING_ATTENTION_SANITIZE)
    target_compile_options(${target} PRIVATE -O0)
  else()
    target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(target STREQUAL test_support)
    target_precompile_headers(${target} PRIVATE <gtest/gtest.h> <Eigen/Core> <algorithm> <cmath> <filesystem>
                              <functional> <thread>)
  else()
    target_precompile_headers(${target} REUSE_FROM test_support)
  endif()
endfunction()

# The problems, rings and checks of many folders, compiled once; and GoogleTest's two mains.
add_library(
  test_support STATIC
  support/decode_runs.cpp
  support/gradients.cpp
  support/masks.cpp
  support/problem.cpp
  support/run.cpp
  support/team.cpp)
add_library(test_unit_main STATIC support/unit_main.cpp)
add_library(test_mpi_main STATIC support/mpi_main.cpp)
target_link_libraries(test_support PUBLIC ring_attention::ring_attention GTest::gtest)
ring_attention_compile_as_test(test_support)
foreach(main IN ITEMS test_unit_main test_mpi_main)
  target_link_libraries(${main} PUBLIC test_support)
  ring_attention_compile_as_test(${main})
endforeach()

# A program of these sources, or these sources added to the program that an earlier call made.
function(ring_attention_test_program program main)
  if(TARGET ${program})
    target_sources(${program} PRIVATE ${ARGN})
  else()
    add_executable(${program} ${ARGN})
    ring_attention_compile_as_test(${program})
    target_link_libraries(${program} PRIVATE ${main})
  endif()
endfunction()

# Fills in what every test has. `labels` and the environment are lists.
function(ring_attention_test_properties name labels processors timeout)
  math(EXPR timeout "${timeout} * ${RING_ATTENTION_SLOWNESS}")
  set_tests_properties(${name} PROPERTIES PROCESSORS ${processors} TIMEOUT ${timeout})
  set_property(TEST ${name} PROPERTY LABELS ${labels})
  set_property(TEST ${name} PROPERTY ENVIRONMENT ${RING_ATTENTION_TEST_ENVIRONMENT})
endfunction()

# For the source file <folder>/<name>.cpp of this folder, below tests: `selection` becomes
# --source=<folder>/<name>.cpp, and `name` becomes <folder>.<name>.
function(ring_attention_name_source source selection name)
  get_filename_component(path "${source}" ABSOLUTE)
  file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}/tests" "${path}")
  set(${selection} "--source=${path}" PARENT_SCOPE)
  string(REGEX REPLACE "\\.cpp$" "" path "${path}")
  string(REPLACE "/" "." path "${path}")
  set(${name} "${path}" PARENT_SCOPE)
endfunction()

# add_unit_tests(<folder> SOURCES file... [COMPILED file...] [LINKS library...])
# The program test_<folder> of these files, in one process; for each file the test unit.<folder>.<file>. The objects of
# COMPILED files are in one of the libraries. A second call adds files to the program, and so does a second call of
# add_mpi_tests.
function(add_unit_tests folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;COMPILED;LINKS")
  set(program test_${folder})
  ring_attention_test_program(${program} test_unit_main ${arg_SOURCES})
  target_link_libraries(${program} PRIVATE ${arg_LINKS})
  add_dependencies(unit_tests ${program})
  foreach(source IN LISTS arg_SOURCES arg_COMPILED)
    ring_attention_name_source(${source} selection name)
    add_test(NAME unit.${name} COMMAND ${program} ${selection})
    ring_attention_test_properties(unit.${name} unit 1 120)
  endforeach()
endfunction()

# add_long_test(<folder> <file> <variable=value>...)
# The test long.<folder>.<file>: the same tests of one file with these environment variables, for ten minutes at most.
function(add_long_test folder source)
  ring_attention_name_source(${source} selection name)
  add_test(NAME long.${name} COMMAND test_${folder} ${selection})
  ring_attention_test_properties(long.${name} long 1 600)
  set_property(TEST long.${name} APPEND PROPERTY ENVIRONMENT ${ARGN})
endfunction()

# add_mpi_tests(<folder> NP 1 2 3 ... [PLAIN 2 3 ...] SOURCES file... [LINKS library...])
# The program test_<folder>_mpi of these files; for each file and rank count the test mpi.<folder>.<file>.npN. For the
# rank counts PLAIN also plain_mpi.<folder>.<file>.npN: the same with MPI as users have it, nothing preloaded and nothing
# set but time limits. (With a sanitizer nothing is preloaded anyway, and there are no such tests.)
function(add_mpi_tests folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "NP;PLAIN;SOURCES;LINKS")
  set(program test_${folder}_mpi)
  ring_attention_test_program(${program} test_mpi_main ${arg_SOURCES})
  target_link_libraries(${program} PRIVATE ${arg_LINKS})
  set(ranks_mpi ${arg_NP})
  set(ranks_plain_mpi ${arg_PLAIN})
  if(RING_ATTENTION_SANITIZE)
    set(ranks_plain_mpi "")
  endif()
  foreach(source IN LISTS arg_SOURCES)
    ring_attention_name_source(${source} selection name)
    foreach(kind IN ITEMS mpi plain_mpi)
      foreach(ranks IN LISTS ranks_${kind})
        set(test ${kind}.${name}.np${ranks})
        add_test(NAME ${test} COMMAND "${RING_ATTENTION_MPIRUN}" -n ${ranks} $<TARGET_FILE:${program}>
                                      --np=${ranks} ${selection})
        ring_attention_test_properties(${test} ${kind} ${ranks} 120)
        if(kind STREQUAL plain_mpi)
          set_property(TEST ${test} PROPERTY ENVIRONMENT ${RING_ATTENTION_TIME_LIMITS})
        elseif(ranks GREATER 4)
          set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT ${RING_ATTENTION_QUICK_START})
        endif()
      endforeach()
    endforeach()
  endforeach()
endfunction()

# add_program_for_script(<target> <source> [library...]): a program without GoogleTest, which a script starts
function(add_program_for_script target source)
  add_executable(${target} ${source})
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/tests")
  target_link_libraries(${target} PRIVATE ring_attention::ring_attention ${ARGN})
endfunction()
