# Whether there is a GPU emulator (RING_ATTENTION_EMULATES), and with NCCL (RING_ATTENTION_EMULATES_NCCL). It needs the
# headers of CUDA and of NCCL (`crt/host_defines.h` among them), and neither nvcc nor a GPU. `sh setup.sh gpu-headers`
# installs them in build/gpu-headers. Under the sanitizers NCCL is left out: its tests are not among those of a
# sanitizer's stage.

set(emulator_default ON)
if(NOT RING_ATTENTION_CUDA)
  set(emulator_default OFF)
endif()
option(RING_ATTENTION_EMULATOR "Emulate a GPU for the tests and the lessons if the headers of CUDA are found"
       ${emulator_default})
set(RING_ATTENTION_EMULATES ${RING_ATTENTION_HAS_CUDA})
set(RING_ATTENTION_EMULATES_NCCL OFF)
set(RING_ATTENTION_CUDA_INCLUDE_DIRS ${CUDAToolkit_INCLUDE_DIRS})
if(NOT RING_ATTENTION_EMULATES AND NOT RING_ATTENTION_EMULATOR)
  return()
endif()

set(installed_headers "${PROJECT_SOURCE_DIR}/build/gpu-headers") # by setup.sh
if(NOT RING_ATTENTION_HAS_CUDA)
  find_path(RING_ATTENTION_CUDA_HEADERS crt/host_defines.h HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda
            "${installed_headers}/cuda/nvidia/cu13" PATH_SUFFIXES include)
  mark_as_advanced(RING_ATTENTION_CUDA_HEADERS)
  if(NOT RING_ATTENTION_CUDA_HEADERS)
    if(RING_ATTENTION_BUILD_TESTS)
      message(STATUS "The GPU emulator is left out: the headers of CUDA were not found (set CUDA_PATH)")
    endif()
    return()
  endif()
  set(RING_ATTENTION_EMULATES ON)
  set(RING_ATTENTION_CUDA_INCLUDE_DIRS "${RING_ATTENTION_CUDA_HEADERS}")
  set(CUDAToolkit_INCLUDE_DIRS "${RING_ATTENTION_CUDA_HEADERS}") # FindNCCL looks there, too
endif()

set(nccl_words "without NCCL (set NCCL_ROOT)")
list(APPEND CUDAToolkit_INCLUDE_DIRS "${installed_headers}/nccl/nvidia/nccl/include")
find_package(NCCL QUIET)
if(NCCL_INCLUDE_DIR AND NOT RING_ATTENTION_SANITIZE) # its library is not needed
  set(RING_ATTENTION_EMULATES_NCCL ON)
  set(nccl_words "with NCCL")
endif()
if(NOT RING_ATTENTION_HAS_CUDA AND RING_ATTENTION_BUILD_TESTS)
  message(STATUS "GPU emulator: the headers of CUDA in ${RING_ATTENTION_CUDA_HEADERS}, ${nccl_words}")
endif()
