# Defines MPI::MPI_CXX and RING_ATTENTION_MPIRUN, a launcher that was seen to work.
#
# The launcher is a script, <build>/mpirun. CTest, the Makefile, the lessons and the notebooks all
# start ranks through it, so that the choice is made once. It is written here and then tried: two
# ranks have to find themselves in one world. Where they do not (Ubuntu 24.04's mpich 4.2.0 starts
# N worlds of one rank), Open MPI's launcher is tried on the same program: that package speaks
# PMIx, as Open MPI does.

set(RING_ATTENTION_MPI ON CACHE STRING
    "ON; for the Python module alone also OFF, or AUTO: with MPI where MPICH's headers are; no launcher is looked for")
set_property(CACHE RING_ATTENTION_MPI PROPERTY STRINGS ON AUTO OFF)
if(RING_ATTENTION_MPI)
  include(ring_attention_find_mpi)
endif()
if(NOT RING_ATTENTION_MPI STREQUAL ON)
  if(RING_ATTENTION_MPI AND MPI_CXX_FOUND)
    try_compile(
      is_mpich "${PROJECT_BINARY_DIR}/CMakeFiles/mpi_probe"
      SOURCES "${PROJECT_SOURCE_DIR}/src/cmake/mpi_probe.cpp"
      LINK_LIBRARIES MPI::MPI_CXX
      COMPILE_DEFINITIONS -DRING_ATTENTION_ONLY_MPICH)
  endif()
  if(RING_ATTENTION_MPI AND MPI_CXX_FOUND AND is_mpich)
    message(STATUS "The Python module has MPI: ${MPI_CXX_COMPILER}")
  else()
    set(folder live/mpi) # of a page
    if(NOT CMAKE_SYSTEM_PROCESSOR STREQUAL wasm32)
      message(STATUS "The Python module has no MPI: there are no headers of MPICH 4")
      set(folder python/without_mpi)
    endif()
    add_library(ring_attention_without_mpi INTERFACE)
    target_include_directories(ring_attention_without_mpi INTERFACE "${PROJECT_SOURCE_DIR}/src/${folder}")
    add_library(MPI::MPI_CXX ALIAS ring_attention_without_mpi)
  endif()
  return()
endif()
if(NOT MPI_CXX_FOUND)
  message(FATAL_ERROR "No MPI was found that compiles and links a program. Remedy: `sh setup.sh` installs MPICH.")
endif()

set(RING_ATTENTION_MPIEXEC "" CACHE FILEPATH
    "The program that starts MPI ranks (default: found and tried)")
set(RING_ATTENTION_MPIRUN "${PROJECT_BINARY_DIR}/mpirun")

# Writes <build>/mpirun for one launcher.
function(ring_attention_write_mpirun launcher)
  set(ring_attention_launcher "${launcher}")
  set(ring_attention_launcher_setup "")
  execute_process(COMMAND "${launcher}" --version OUTPUT_VARIABLE version ERROR_VARIABLE version)
  if(version MATCHES "Open MPI|OpenRTE|open-mpi")
    # Open MPI refuses more ranks than cores, and root, unless it is told.
    string(CONCAT ring_attention_launcher_setup
           "set -- --oversubscribe \"$@\"\n"
           "[ \"$(id -u)\" -ne 0 ] || set -- --allow-run-as-root \"$@\"\n")
  endif()
  configure_file("${PROJECT_SOURCE_DIR}/src/cmake/mpirun.in" "${RING_ATTENTION_MPIRUN}" @ONLY
                 FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE
                                  WORLD_READ WORLD_EXECUTE)
endfunction()

# Runs the probe on two ranks; an empty `problem` means that they were in one world.
function(ring_attention_probe problem)
  execute_process(
    COMMAND "${RING_ATTENTION_MPIRUN}" -n 2 "${RING_ATTENTION_MPI_PROBE}"
    RESULT_VARIABLE result
    OUTPUT_VARIABLE output
    ERROR_VARIABLE output
    TIMEOUT 30)
  string(REGEX MATCHALL "probe: rank [01] of 2\\." good "${output}")
  string(REGEX MATCHALL "probe: rank 0 of 1\\." alone "${output}")
  list(LENGTH good good)
  list(LENGTH alone alone)
  if(result EQUAL 0 AND good EQUAL 2 AND alone EQUAL 0)
    set(${problem} "" PARENT_SCOPE)
  elseif(alone GREATER 0)
    set(${problem} "started ${alone} worlds of one rank instead of one world of two" PARENT_SCOPE)
  else()
    string(STRIP "${output}" output)
    string(SUBSTRING "${output}" 0 600 output)
    set(${problem} "failed (${result}): ${output}" PARENT_SCOPE)
  endif()
endfunction()

set(chosen_from "${RING_ATTENTION_MPIEXEC};${MPIEXEC_EXECUTABLE};${MPI_CXX_LIBRARIES}")
if(NOT RING_ATTENTION_MPI_CHOSEN_FROM STREQUAL chosen_from OR NOT EXISTS "${RING_ATTENTION_MPIRUN}")
  set(RING_ATTENTION_MPI_PROBE "${PROJECT_BINARY_DIR}/mpi_probe")
  try_compile(
    compiled "${PROJECT_BINARY_DIR}/CMakeFiles/mpi_probe"
    SOURCES "${PROJECT_SOURCE_DIR}/src/cmake/mpi_probe.cpp"
    LINK_LIBRARIES MPI::MPI_CXX
    COPY_FILE "${RING_ATTENTION_MPI_PROBE}"
    OUTPUT_VARIABLE output)
  if(NOT compiled)
    if(output MATCHES "MPI_Bcast_c")
      message(FATAL_ERROR "${MPI_CXX_COMPILER} is of an MPI without MPI_Bcast_c, one of MPI 4's functions with large counts. "
                          "Open MPI has none up to 5.0. Remedy: install MPICH (`sh setup.sh`) and configure in a new folder, "
                          "or name another MPI with -DMPI_CXX_COMPILER=mpicxx.")
    endif()
    message(FATAL_ERROR "A small MPI program does not compile:\n${output}")
  endif()

  if(RING_ATTENTION_MPIEXEC)
    set(candidates "${RING_ATTENTION_MPIEXEC}")
  else()
    find_program(RING_ATTENTION_OPENMPI_MPIRUN mpirun.openmpi)
    mark_as_advanced(RING_ATTENTION_OPENMPI_MPIRUN)
    set(candidates "${MPIEXEC_EXECUTABLE}" "${RING_ATTENTION_OPENMPI_MPIRUN}")
    list(FILTER candidates EXCLUDE REGEX "NOTFOUND$|^$")
  endif()

  set(tried "")
  set(chosen "")
  foreach(candidate IN LISTS candidates)
    ring_attention_write_mpirun("${candidate}")
    ring_attention_probe(problem)
    if(NOT problem)
      set(chosen "${candidate}")
      break()
    endif()
    string(APPEND tried "\n  ${candidate} ${problem}")
  endforeach()
  if(NOT chosen)
    file(REMOVE "${RING_ATTENTION_MPIRUN}")
    message(
      FATAL_ERROR
        "No launcher starts two MPI ranks that see each other. Tried:${tried}\n"
        "Remedy: `sh setup.sh` (on Ubuntu 24.04, whose mpich 4.2.0 is broken in this way, it adds "
        "Open MPI's launcher, which works), or name a launcher that fits your MPI library with "
        "-DRING_ATTENTION_MPIEXEC=/path/to/mpiexec.")
  endif()
  set(RING_ATTENTION_MPI_CHOSEN "${chosen}" CACHE INTERNAL "The launcher that was seen to work")
  set(RING_ATTENTION_MPI_CHOSEN_FROM "${chosen_from}" CACHE INTERNAL "What the choice rests on")
  message(STATUS "MPI ranks are started by ${chosen} (tried on 2 ranks)")
  if(tried)
    message(STATUS "MPI launchers that did not work:${tried}")
  endif()
else()
  ring_attention_write_mpirun("${RING_ATTENTION_MPI_CHOSEN}") # mpirun.in may be newer
endif()
