# For a browser page: the clang and the C library of the wheel `ziglang`, which `sh setup.sh live` loads.
set(CMAKE_SYSTEM_NAME Generic)
set(CMAKE_SYSTEM_PROCESSOR wasm32)
set(zig "${CMAKE_CURRENT_LIST_DIR}/../../build/zig/ziglang/zig")
set(CMAKE_CXX_COMPILER "${zig}" c++)
set(CMAKE_C_COMPILER "${zig}" cc)
set(CMAKE_C_COMPILER_TARGET wasm32-wasi)
set(CMAKE_CXX_COMPILER_TARGET wasm32-wasi)
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
set(CMAKE_C_ARCHIVE_CREATE "\"${zig}\" ar qcs <TARGET> <OBJECTS>") # a bare Debian has no ar
set(CMAKE_CXX_ARCHIVE_CREATE "${CMAKE_C_ARCHIVE_CREATE}")
set(CMAKE_C_ARCHIVE_FINISH "")
set(CMAKE_CXX_ARCHIVE_FINISH "")
set(CMAKE_HAVE_LIBC_PTHREAD TRUE)

# The wheel's driver compiles C++ for WASI without exceptions, threads and files: CMakeLists.txt here makes a library that has
# them. (A std::thread could not start; the ranks compute without.) CLI11 and nlohmann-json are in /usr/include.
# Without -g0, names are half of the module.
string(CONCAT CMAKE_CXX_FLAGS_INIT
       "-fwasm-exceptions -mexception-handling -msimd128 -g0 "
       "-U_LIBCPP_HAS_THREADS -D_LIBCPP_HAS_THREADS=1 -D_LIBCPP_HAS_THREAD_API_PTHREAD=1 "
       "-U_LIBCPP_HAS_FILESYSTEM -D_LIBCPP_HAS_FILESYSTEM=1 -idirafter /usr/include "
       "-DEIGEN_DEFAULT_DENSE_INDEX_TYPE='long long'")
set(CMAKE_C_FLAGS_INIT "-fwasm-exceptions -mexception-handling -g0")
