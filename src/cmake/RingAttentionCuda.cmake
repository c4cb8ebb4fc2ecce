# Whether the GPU parts are built (RING_ATTENTION_HAS_CUDA, RING_ATTENTION_HAS_NCCL), and how.
#
# AUTO takes CUDA and NCCL where they are found and work, and says in one line when they are left out. `make run` has no
# use for them on a machine without an NVIDIA driver: there only a build of the tests compiles the kernels. The CUDA
# runtime is linked statically and the driver is never linked: programs of a GPU build start on a machine without one.

set(RING_ATTENTION_CUDA "${RING_ATTENTION_AUTO}"
    CACHE STRING "Build the GPU parts: ON, OFF, or AUTO (when nvcc is found and works)")
set_property(CACHE RING_ATTENTION_CUDA PROPERTY STRINGS AUTO ON OFF)
option(RING_ATTENTION_CUDA_HERE
       "Compile for this machine's GPU only; where there is none, for Hopper, and only if RING_ATTENTION_TESTS is ON" OFF)

set(RING_ATTENTION_HAS_CUDA OFF)
set(RING_ATTENTION_HAS_NCCL OFF)
if(NOT RING_ATTENTION_CUDA)
  return()
endif()

set(capability "")
if(RING_ATTENTION_CUDA_HERE)
  find_program(RING_ATTENTION_NVIDIA_SMI nvidia-smi) # comes with the driver
  mark_as_advanced(RING_ATTENTION_NVIDIA_SMI)
  if(RING_ATTENTION_NVIDIA_SMI)
    execute_process(COMMAND "${RING_ATTENTION_NVIDIA_SMI}" --query-gpu=compute_cap --format=csv,noheader
                    OUTPUT_VARIABLE capability ERROR_QUIET)
  endif()
  if(NOT capability MATCHES "^[0-9]+\\.[0-9]") # it may print an error
    set(capability "")
  endif()
  string(REGEX MATCHALL "[0-9]+\\.[0-9]" capability "${capability}") # one a GPU
  list(REMOVE_DUPLICATES capability)
  if(NOT capability AND RING_ATTENTION_CUDA STREQUAL AUTO AND (NOT RING_ATTENTION_TESTS OR RING_ATTENTION_TESTS STREQUAL AUTO))
    message(STATUS "The GPU parts are left out: no NVIDIA driver was found (nvidia-smi names no GPU). "
                   "With nvcc, `make test` compiles them, and so does `cmake --preset release -DRING_ATTENTION_CUDA=ON`.")
    return()
  endif()
endif()

# Says `why` there are no GPU parts and what the `remedy` is, and ends this file.
macro(ring_attention_leave_cuda_out)
  if(RING_ATTENTION_CUDA STREQUAL AUTO)
    message(STATUS "The GPU parts are left out: ${why}. To have them: ${remedy}.")
    return()
  endif()
  message(FATAL_ERROR "RING_ATTENTION_CUDA is ON, and ${why}. Remedy: ${remedy}.")
endmacro()

# What nvcc says about an empty program, at most its last lines: CMake does not always show it.
function(ring_attention_words_of_nvcc variable nvcc)
  set(folder "${PROJECT_BINARY_DIR}/CMakeFiles/try_nvcc")
  file(WRITE "${folder}/empty.cu" "int main() {}\n")
  set(host "")
  if(DEFINED ENV{CUDAHOSTCXX})
    set(host "-ccbin=$ENV{CUDAHOSTCXX}")
  endif()
  execute_process(COMMAND "${nvcc}" ${host} empty.cu -o empty WORKING_DIRECTORY "${folder}" RESULT_VARIABLE result
                  OUTPUT_VARIABLE words ERROR_VARIABLE words)
  string(STRIP "${words}" words)
  string(REGEX MATCH "([^\n]*\n?[^\n]*\n?[^\n]*\n?[^\n]*\n?[^\n]*)$" words "${words}")
  string(REPLACE "\n" "\n    " words "    ${words}\n(exit code ${result})")
  set(${variable} "${words}" PARENT_SCOPE)
endfunction()

if(CMAKE_VERSION VERSION_LESS 3.25)
  set(why "CMake ${CMAKE_VERSION} does not know sm_90a, 3.25 is the oldest that does")
  set(remedy "install a newer CMake, for instance with `pip install cmake`")
  ring_attention_leave_cuda_out()
endif()

# Ampere, Ada and Hopper with Hopper's own instructions (the `a`); PTX for what comes later. To be set before the
# language is enabled, which would otherwise choose one of its own.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80-real;89-real;90a-real;80-virtual")
  if(RING_ATTENTION_CUDA_HERE)
    if(NOT capability OR capability MATCHES "^9\\.0$")
      set(CMAKE_CUDA_ARCHITECTURES "90a-real")
    elseif(capability MATCHES "^8\\.9$")
      set(CMAKE_CUDA_ARCHITECTURES "89-real")
    elseif(capability MATCHES "^8\\.[0-8]$")
      set(CMAKE_CUDA_ARCHITECTURES "80-real")
    endif() # another GPU, or several kinds, take what they can use of them all
  endif()
endif()

# A compiler that is there and does not work must not end the configuration: it is tried in a project of its own.
if(NOT CMAKE_CUDA_COMPILER_LOADED AND NOT RING_ATTENTION_CUDA_TRIED)
  if(CMAKE_CUDA_COMPILER)
    set(ENV{CUDACXX} "${CMAKE_CUDA_COMPILER}")
  elseif(NOT DEFINED ENV{CUDACXX}) # often installed and not in PATH
    find_program(RING_ATTENTION_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES bin)
    mark_as_advanced(RING_ATTENTION_NVCC)
    if(RING_ATTENTION_NVCC)
      set(ENV{CUDACXX} "${RING_ATTENTION_NVCC}")
    endif()
  endif()
  unset(CMAKE_CUDA_COMPILER) # what is set is believed untried
  unset(CMAKE_CUDA_COMPILER CACHE)
  set(CMAKE_MESSAGE_LOG_LEVEL NOTICE) # the line below says what came of it
  include(CheckLanguage)
  check_language(CUDA)
  unset(CMAKE_MESSAGE_LOG_LEVEL)
  if(CMAKE_CUDA_COMPILER)
    set(RING_ATTENTION_CUDA_TRIED ON CACHE INTERNAL "The CUDA compiler was seen to work")
  endif()
endif()
set(remedy "put nvcc into PATH, or set CUDACXX")
if(NOT CMAKE_CUDA_COMPILER)
  get_filename_component(nvcc "$ENV{CUDACXX}" PROGRAM)
  if(nvcc)
    ring_attention_words_of_nvcc(words "${nvcc}")
    set(why "${nvcc} does not work:\n${words}\n  The usual cause is a g++ that is newer than this nvcc supports")
    set(remedy "name an older g++ with CUDAHOSTCXX=g++-NN, or take a newer CUDA")
  else()
    set(why "no CUDA compiler was found")
  endif()
else()
  enable_language(CUDA)
  find_package(CUDAToolkit QUIET)
  if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4) # its headers were tried, and no older ones
    set(why "CUDA ${CMAKE_CUDA_COMPILER_VERSION} is too old, 12.4 is the oldest")
  elseif(NOT TARGET CUDA::cudart_static)
    set(why "the CUDA toolkit has no static runtime")
  else()
    set(RING_ATTENTION_HAS_CUDA ON)
  endif()
endif()
if(NOT RING_ATTENTION_HAS_CUDA)
  ring_attention_leave_cuda_out()
endif()

# CMake 3.25 knows no C++20 flag for some versions of nvcc, and drops the request without a word.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)

find_package(NCCL QUIET)
if(NCCL_FOUND)
  set(RING_ATTENTION_HAS_NCCL ON)
  set(nccl_words "NCCL ${NCCL_VERSION}")
else()
  set(nccl_words "no NCCL (install libnccl-dev, or set NCCL_ROOT): K,V travel through the host")
endif()
message(STATUS "GPU parts: CUDA ${CMAKE_CUDA_COMPILER_VERSION} for ${CMAKE_CUDA_ARCHITECTURES}, ${nccl_words}")
