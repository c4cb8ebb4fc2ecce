# The GPU parts: the library ring_attention_cuda.

# What runs on the host is a library of its own: the GPU emulator of the tests takes its objects, too.
add_library(ring_attention_cuda_host OBJECT ${cuda_sources})
target_link_libraries(ring_attention_cuda_host PRIVATE ring_attention CUDA::cudart_static)
target_precompile_headers(ring_attention_cuda_host REUSE_FROM ring_attention_headers)
set_target_properties(ring_attention_cuda_host PROPERTIES UNITY_BUILD OFF) # tests replace single objects

add_library(ring_attention_cuda STATIC $<TARGET_OBJECTS:ring_attention_cuda_host> ${cuda_launch_sources})
add_library(ring_attention::ring_attention_cuda ALIAS ring_attention_cuda)
target_link_libraries(ring_attention_cuda PUBLIC ring_attention CUDA::cudart_static)

add_custom_target(kernel_objects) # builds those whose architectures are CMAKE_CUDA_ARCHITECTURES
# Compiler options of a library of kernels. Warnings are those of the other files. The output of ptxas (registers,
# spills, warnings such as C7508) is stored beside each object, in <object>.ptxas, for tests/cuda/ptxas_test.py.
set(RING_ATTENTION_SRC "${CMAKE_CURRENT_SOURCE_DIR}" CACHE INTERNAL "Where src is")
function(ring_attention_kernel_options target)
  set(warnings "-Wall,-Wextra,-Wshadow,-Wnon-virtual-dtor") # never -Wpedantic: nvcc's own code has line markers
  if(RING_ATTENTION_WERROR)
    string(APPEND warnings ",-Werror")
  endif()
  target_include_directories(${target} PRIVATE "${RING_ATTENTION_SRC}")
  target_compile_options(${target} PRIVATE -lineinfo -Xptxas=-v "-Xcompiler=${warnings}"
                                           $<$<BOOL:${RING_ATTENTION_WERROR}>:-Werror=all-warnings>)
  # Kernels share names, and CMake has unity builds for CUDA from 3.31 on.
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF
                        CUDA_COMPILER_LAUNCHER "sh;${RING_ATTENTION_SRC}/cmake/keep_ptxas_log.sh")
  set_property(GLOBAL APPEND PROPERTY RING_ATTENTION_CUDA_OBJECTS # with commas, for a test's command
                                      "$<JOIN:$<TARGET_OBJECTS:${target}>,$<COMMA>>")
endfunction()

function(ring_attention_add_kernels target)
  add_library(${target} OBJECT ${ARGN})
  ring_attention_kernel_options(${target})
  target_sources(ring_attention_cuda PRIVATE $<TARGET_OBJECTS:${target}>)
endfunction()
ring_attention_add_kernels(ring_attention_cuda_kernels ${kernel_sources})
add_dependencies(kernel_objects ring_attention_cuda_kernels)
# The Hopper kernels are compiled for sm_90a only, for any CMAKE_CUDA_ARCHITECTURES.
ring_attention_add_kernels(ring_attention_hopper_kernels ${hopper_kernel_sources})
set_target_properties(ring_attention_hopper_kernels PROPERTIES CUDA_ARCHITECTURES 90a-real)

if(RING_ATTENTION_HAS_NCCL)
  target_sources(ring_attention_cuda_host PRIVATE ${nccl_sources})
  target_link_libraries(ring_attention_cuda_host PRIVATE NCCL::nccl)
  target_compile_definitions(ring_attention_cuda_host PRIVATE RING_ATTENTION_HAS_NCCL)
  target_link_libraries(ring_attention_cuda PUBLIC NCCL::nccl)
  target_compile_definitions(ring_attention_cuda PUBLIC RING_ATTENTION_HAS_NCCL)
endif()
