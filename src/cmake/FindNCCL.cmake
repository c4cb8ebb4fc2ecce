# Finds NCCL: the target NCCL::nccl, and NCCL_VERSION.
#
# Looks in NCCL_ROOT and NCCL_HOME (CMake or environment variables), in the folders of the CUDA toolkit and in the
# system's. NVIDIA's Python wheel (nvidia/nccl) has no plain libnccl.so: libnccl.so.2 will do.

find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${NCCL_ROOT} ${NCCL_HOME} ENV NCCL_ROOT ENV NCCL_HOME
          ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2 NAMES_PER_DIR HINTS ${NCCL_ROOT} ${NCCL_HOME} ENV NCCL_ROOT ENV NCCL_HOME
             ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT} PATH_SUFFIXES lib lib64)
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)

if(NCCL_INCLUDE_DIR)
  set(NCCL_VERSION "")
  foreach(part IN ITEMS MAJOR MINOR PATCH)
    file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" line REGEX "^#define NCCL_${part} ")
    string(REGEX MATCH "[0-9]+$" line "${line}")
    list(APPEND NCCL_VERSION ${line})
  endforeach()
  list(JOIN NCCL_VERSION "." NCCL_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)

if(NCCL_FOUND AND NOT TARGET NCCL::nccl)
  add_library(NCCL::nccl UNKNOWN IMPORTED)
  set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION "${NCCL_LIBRARY}"
                                              INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
