# What every target of this project is compiled with. Nothing here is exported.

if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)

set(CMAKE_OPTIMIZE_DEPENDENCIES ON) # a static library is built without waiting for those that it is linked with

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON) # for clang-tidy and editors
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 12)
  message(FATAL_ERROR "g++ ${CMAKE_CXX_COMPILER_VERSION} is too old: 12 is the oldest that is tested. "
                      "Remedy: `sudo apt-get install g++-12`, `make clean` and CXX=g++-12 (`CXX=g++-12 make run`).")
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 16)
  message(FATAL_ERROR "Clang ${CMAKE_CXX_COMPILER_VERSION} is too old: std::source_location needs 16. "
                      "Remedy: CXX=clang++-16 or CXX=g++ (12 or newer) and a fresh build folder.")
endif()

# No fused multiply-add behind the reader's back: two files that spell out the same arithmetic
# give the same bits, on machines with and without FMA. (x86-64 without -march has none.)
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

# -O3 takes a quarter longer to compile. The kernels have it (cpu_kernels.cmake): the time of a run is theirs.
add_compile_options($<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release>>:-O2>)

# GCC frees memory for the first time when it uses this many KiB, not 128 MiB: it compiles in 5 % less time.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=524288>)
endif()

# Also for programs, so that they can use the library's precompiled header: GCC asks for the same options.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fPIC>)

add_compile_options(
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wnon-virtual-dtor>")
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # False alarm on `"text" + std::string` (GCC bug 105651).
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
endif()
if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>) # it takes the joined files for headers
endif()
if(RING_ATTENTION_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()

if(RING_ATTENTION_SANITIZE)
  set(flags -fsanitize=${RING_ATTENTION_SANITIZE} -fno-omit-frame-pointer)
  if(NOT RING_ATTENTION_SANITIZE MATCHES thread)
    list(APPEND flags -fno-sanitize-recover=all) # a finding ends the program with a non-zero code
  endif()
  if(CMAKE_CXX_COMPILER_ID MATCHES Clang) # GCC defines these itself
    string(REGEX MATCH "address|thread" kind "${RING_ATTENTION_SANITIZE}")
    string(TOUPPER "${kind}" kind)
    list(APPEND flags -D__SANITIZE_${kind}__)
  endif()
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${flags}>")
  add_link_options(-fsanitize=${RING_ATTENTION_SANITIZE})
  unset(flags)
  unset(kind)
endif()
