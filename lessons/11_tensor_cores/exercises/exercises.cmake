# The exercises of lesson 11: kernels with holes, which the emulator judges. exercise_11a is the program judge/a.cpp
# with the kernel that exercise.sh names in <build>/exercises/11a_softmax.hpp: the reader's copy of a_softmax.cu. Nothing
# builds it but exercise.sh.

set(lesson_11_exercises a_softmax b_fragment c_tma d_producer e_ping_pong)
set(folder "${CMAKE_CURRENT_LIST_DIR}")

if(RING_ATTENTION_HAS_CUDA) # nvcc compiles them as they are
  list(TRANSFORM lesson_11_exercises REPLACE "(.+)" "${folder}/\\1.cu" OUTPUT_VARIABLE kernels)
  add_library(lesson_11_exercise_kernels OBJECT ${kernels})
  ring_attention_kernel_options(lesson_11_exercise_kernels)
  set_target_properties(lesson_11_exercise_kernels PROPERTIES CUDA_ARCHITECTURES 90a-real)
  add_dependencies(lessons lesson_11_exercise_kernels)
endif()
if(NOT RING_ATTENTION_EMULATES)
  return()
endif()

add_library(lesson_11_judge STATIC EXCLUDE_FROM_ALL "${folder}/judge/judge.cpp"
            "${PROJECT_SOURCE_DIR}/src/ring_attention/cuda/check.cpp")
target_link_libraries(lesson_11_judge PUBLIC cuda_emulator)
foreach(exercise IN LISTS lesson_11_exercises)
  string(SUBSTRING ${exercise} 0 1 letter)
  set(target exercise_11${letter})
  set(kernel "${CMAKE_CURRENT_BINARY_DIR}/CMakeFiles/emulated/${target}.cpp")
  file(CONFIGURE OUTPUT "${kernel}" CONTENT "#include \"emulator/language.hpp\"\n#include LESSON_IDEA\n")
  add_executable(${target} EXCLUDE_FROM_ALL "${folder}/judge/${letter}.cpp" "${kernel}")
  target_link_libraries(${target} PRIVATE lesson_11_judge)
  target_include_directories(${target} PRIVATE "${folder}")
  target_compile_definitions(${target} PRIVATE "LESSON_IDEA=\"${PROJECT_BINARY_DIR}/exercises/11${exercise}.hpp\"")
  target_compile_options(${target} PRIVATE -Wno-unused -Wno-unused-parameter -Wno-error) # a hole leaves names unused
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/exercises" UNITY_BUILD OFF
                                             OUTPUT_NAME 11${exercise})
endforeach()
