# The kernels' own source, compiled by g++ against headers that emulate the GPU: emulated_kernels. So their arithmetic,
# their indices and their masks are tested on a machine without a GPU. The toolkit's headers are needed.

file(RELATIVE_PATH emulator "${PROJECT_SOURCE_DIR}/tests" "${CMAKE_CURRENT_LIST_DIR}")
add_library(cuda_emulator STATIC ${emulator}/machine.cpp)
# Searched before src: these headers take the place of those of the same name.
target_compile_options(cuda_emulator PUBLIC "-iquote${CMAKE_CURRENT_LIST_DIR}")
target_include_directories(cuda_emulator PUBLIC "${PROJECT_SOURCE_DIR}/tests")
target_include_directories(cuda_emulator SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(cuda_emulator PUBLIC ring_attention::ring_attention)
target_compile_options(cuda_emulator PUBLIC -O2 -Wno-unknown-pragmas -Wno-pedantic -Wno-conversion)

set(wrappers)
foreach(target IN ITEMS ring_attention_cuda_kernels ring_attention_hopper_kernels)
  if(TARGET ${target})
    get_target_property(kernels ${target} SOURCES)
    foreach(kernel IN LISTS kernels)
      string(REGEX REPLACE "[/.]" "_" wrapper "${kernel}")
      set(wrapper "${CMAKE_CURRENT_BINARY_DIR}/emulated/${wrapper}.cpp")
      file(CONFIGURE OUTPUT "${wrapper}" CONTENT
        "#include \"cuda/emulator/language.hpp\"\n#include \"${PROJECT_SOURCE_DIR}/src/${kernel}\"\n")
      list(APPEND wrappers "${wrapper}")
    endforeach()
  endif()
endforeach()
add_library(emulated_kernels STATIC ${wrappers} "${PROJECT_SOURCE_DIR}/src/ring_attention/cuda/ladder.cpp")
target_link_libraries(emulated_kernels PUBLIC cuda_emulator)

# The whole room `cuda` on those kernels, over a runtime whose device memory is the host's: engines and rings can be
# tested, too.
get_target_property(sources ring_attention_cuda SOURCES)
list(FILTER sources INCLUDE REGEX "ring_attention/(cuda/.*|ring/(device_ring|own_gpu))\\.cpp$")
list(FILTER sources EXCLUDE REGEX "ladder\\.cpp$")
list(TRANSFORM sources PREPEND "${PROJECT_SOURCE_DIR}/src/")
add_library(ring_attention_cuda_emulated STATIC ${emulator}/runtime.cpp ${sources})
target_link_libraries(ring_attention_cuda_emulated PUBLIC emulated_kernels)

# NCCL's transport over an emulated NCCL, and the program as a user has it.
if(RING_ATTENTION_HAS_NCCL)
  target_sources(ring_attention_cuda_emulated
                 PRIVATE ${emulator}/nccl.cpp "${PROJECT_SOURCE_DIR}/src/ring_attention/ring/nccl_ring.cpp")
  target_include_directories(ring_attention_cuda_emulated SYSTEM PUBLIC ${NCCL_INCLUDE_DIR})
  target_compile_definitions(ring_attention_cuda_emulated PUBLIC RING_ATTENTION_HAS_NCCL)
endif()
if(TARGET ring-attention)
  get_target_property(sources ring-attention SOURCES)
  list(TRANSFORM sources REPLACE "(ring_attention/)" "${PROJECT_SOURCE_DIR}/src/\\1")
  add_executable(ring-attention-emulated ${sources})
  target_link_libraries(ring-attention-emulated PRIVATE ring_attention_app ring_attention_cuda_emulated)
endif()
