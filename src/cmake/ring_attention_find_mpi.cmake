# Finds MPI::MPI_CXX, and MPICH rather than another MPI that is installed beside it.
#
# Used by this project's build and, installed beside the package config, by projects that say
# find_package(ring_attention): both have to take the same MPI.
#
# Debian and Ubuntu give each MPI's tools a suffix. Setting the suffix, and not only the compiler,
# matters: with MPICH's compiler and Open MPI's mpiexec every rank is a world of its own.

if(NOT TARGET MPI::MPI_CXX)
  set(ring_attention_set_suffix OFF)
  if(NOT DEFINED MPI_EXECUTABLE_SUFFIX AND NOT DEFINED MPI_CXX_COMPILER AND NOT DEFINED MPI_HOME)
    find_program(ring_attention_MPICXX_MPICH mpicxx.mpich)
    mark_as_advanced(ring_attention_MPICXX_MPICH)
    if(ring_attention_MPICXX_MPICH)
      set(MPI_EXECUTABLE_SUFFIX .mpich)
      set(ring_attention_set_suffix ON)
    endif()
  endif()

  set(MPI_CXX_SKIP_MPICXX ON) # the C interface only
  find_package(MPI COMPONENTS CXX)

  if(ring_attention_set_suffix)
    unset(MPI_EXECUTABLE_SUFFIX) # a later find_package(MPI) of the caller's is the caller's choice
  endif()
  unset(ring_attention_set_suffix)

  # Ubuntu's mpicxx passes on the distribution's own link-time optimisation flags. They are not
  # needed to use MPI, and clang does not know all of them.
  if(TARGET MPI::MPI_CXX)
    get_target_property(ring_attention_mpi_options MPI::MPI_CXX INTERFACE_COMPILE_OPTIONS)
    if(ring_attention_mpi_options MATCHES "lto")
      list(FILTER ring_attention_mpi_options EXCLUDE REGEX "lto")
      set_property(TARGET MPI::MPI_CXX PROPERTY INTERFACE_COMPILE_OPTIONS
                                                "${ring_attention_mpi_options}")
    endif()
    unset(ring_attention_mpi_options)
  endif()
endif()
