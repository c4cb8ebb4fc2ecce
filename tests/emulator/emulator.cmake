# emulated_kernels: the unchanged source of the kernels, compiled by g++ with headers that emulate the GPU (README.md).
# It needs the headers of the CUDA toolkit.

file(RELATIVE_PATH emulator "${PROJECT_SOURCE_DIR}/tests" "${CMAKE_CURRENT_LIST_DIR}")
add_library(cuda_emulator STATIC ${emulator}/machine.cpp)
# This folder is searched before src: its headers replace those with the same path.
target_compile_options(cuda_emulator PUBLIC "-iquote${CMAKE_CURRENT_LIST_DIR}")
target_include_directories(cuda_emulator PUBLIC "${PROJECT_SOURCE_DIR}/tests")
target_include_directories(cuda_emulator SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(cuda_emulator PUBLIC ring_attention::ring_attention)
target_compile_options(cuda_emulator PUBLIC -O2 -Wno-unknown-pragmas -Wno-pedantic -Wno-conversion)

include("${PROJECT_SOURCE_DIR}/src/cmake/sources.cmake")

# emulated_source(<variable> <kernel.cu>): a C++ file that compiles the kernel for the emulator
function(emulated_source variable kernel)
  string(MAKE_C_IDENTIFIER "${kernel}" name)
  set(wrapper "${CMAKE_CURRENT_BINARY_DIR}/emulated/${name}.cpp")
  file(CONFIGURE OUTPUT "${wrapper}" CONTENT "#include \"emulator/language.hpp\"\n#include \"${kernel}\"\n")
  set(${variable} "${wrapper}" PARENT_SCOPE)
endfunction()

add_library(emulated_kernels STATIC ${kernel_list_sources})
foreach(kernel IN LISTS kernel_sources hopper_kernel_sources)
  emulated_source(wrapper "${kernel}")
  target_sources(emulated_kernels PRIVATE "${wrapper}")
endforeach()
target_link_libraries(emulated_kernels PUBLIC cuda_emulator)

# The engines and transports on those kernels, with a runtime whose device memory is host memory.
add_library(ring_attention_cuda_emulated STATIC ${emulator}/runtime.cpp ${cuda_sources} ${cli_cuda_sources})
target_link_libraries(ring_attention_cuda_emulated PUBLIC emulated_kernels)

# The NCCL transport on an emulated NCCL, and the program ring-attention on the emulator.
if(RING_ATTENTION_HAS_NCCL)
  target_sources(ring_attention_cuda_emulated PRIVATE ${emulator}/nccl.cpp ${nccl_sources})
  target_include_directories(ring_attention_cuda_emulated SYSTEM PUBLIC ${NCCL_INCLUDE_DIR})
  target_compile_definitions(ring_attention_cuda_emulated PUBLIC RING_ATTENTION_HAS_NCCL)
endif()
if(TARGET ring-attention)
  add_executable(ring-attention-emulated ${program_sources} ${program_cuda_sources})
  target_link_libraries(ring-attention-emulated PRIVATE ring_attention_program ring_attention_cuda_emulated)
endif()
