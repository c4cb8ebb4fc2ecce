# The kernels of the folder `cpu`, compiled once for each instruction set into the same library; the best
# one is chosen when the program runs. Only these files may use wide instructions, and only these may
# fuse a multiply and an add: both would change what the rest of the project computes.

if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
  set(kernel_isas x86_64 avx2 avx512)
  set(kernel_flags_avx2 -mavx2 -mfma)
  set(kernel_flags_avx512 -mavx2 -mfma -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$")
  set(kernel_isas neon)
else()
  set(kernel_isas generic)
endif()

# The kernels of one instruction set in these files; they stand in the namespace <isa>_<name>.
function(ring_attention_cpu_kernels isa name)
  set(kernels ring_attention_kernels_${isa}_${name})
  add_library(${kernels} OBJECT ${ARGN})
  target_compile_features(${kernels} PRIVATE cxx_std_20)
  target_include_directories(${kernels} PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
  target_compile_definitions(${kernels} PRIVATE RING_ATTENTION_ISA=${isa}_${name})
  target_compile_options(${kernels} PRIVATE $<$<CONFIG:Release>:-O3> ${kernel_flags_${isa}})
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    target_compile_options(${kernels} PRIVATE -Wno-psabi) # vectors as arguments: all inlined
  endif()
  set_target_properties(${kernels} PROPERTIES POSITION_INDEPENDENT_CODE ON UNITY_BUILD OFF)
  target_sources(ring_attention PRIVATE $<TARGET_OBJECTS:${kernels}>)
  set_property(GLOBAL APPEND PROPERTY RING_ATTENTION_KERNEL_OBJECTS $<TARGET_OBJECTS:${kernels}>)
endfunction()

set(kernel_bytes_float 4)
set(kernel_bytes_double 8)
foreach(isa IN LISTS kernel_isas)
  foreach(real IN ITEMS float double)
    ring_attention_cpu_kernels(
      ${isa} ${real} ring_attention/cpu/forward_kernel.cpp ring_attention/cpu/forward_1_vector_kernel.cpp
      ring_attention/cpu/forward_2_vector_kernel.cpp ring_attention/cpu/backward_kernel.cpp
      ring_attention/cpu/product_kernel.cpp)
    target_compile_definitions(ring_attention_kernels_${isa}_${real} PRIVATE
                               RING_ATTENTION_REAL=${real} RING_ATTENTION_REAL_BYTES=${kernel_bytes_${real}})
  endforeach()
  target_sources(
    ring_attention_kernels_${isa}_float
    PRIVATE ring_attention/cpu/exact/forward_kernel.cpp ring_attention/cpu/exact/forward_1_vector_kernel.cpp
            ring_attention/cpu/exact/forward_2_vector_kernel.cpp ring_attention/cpu/exact/backward_kernel.cpp
            ring_attention/cpu/exact/sum_kernel.cpp)
endforeach()
