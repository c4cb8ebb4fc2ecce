# `cmake --install`: headers, library, and what find_package(ring_attention) and
# pkg-config find.

include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/ring_attention")

install(TARGETS ring_attention EXPORT ring_attention_targets)
if(RING_ATTENTION_PROGRAMS)
  install(TARGETS ring-attention RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  # Where the program finds the library, if that is shared.
  file(RELATIVE_PATH to_library "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}")
  if(APPLE)
    set(program_folder "@loader_path")
  else()
    set(program_folder "$ORIGIN")
  endif()
  # The libraries that it was linked with are found as well, such as an NCCL of pip.
  set_target_properties(ring-attention PROPERTIES INSTALL_RPATH "${program_folder}/${to_library}"
                                                  INSTALL_RPATH_USE_LINK_PATH ON)
  install(DIRECTORY python/ring_attention_diagnose DESTINATION "${CMAKE_INSTALL_DATADIR}/ring_attention"
          PATTERN __pycache__ EXCLUDE PATTERN pyproject.toml EXCLUDE)
endif()
# The headers: those that users include, and what these include, followed when they are installed.
set(public_headers
    ring_attention/ring_attention.hpp ring_attention/gpu_attention.hpp ring_attention/observed_call.hpp
    ring_attention/partitions.hpp ring_attention/peer_ranks.hpp ring_attention/parallel/balance/balanced.hpp
    ring_attention/parallel/function_device.hpp ring_attention/parallel/same_bits_processor.hpp)
if(RING_ATTENTION_HAS_CUDA)
  list(APPEND public_headers ring_attention/cuda/device.hpp ring_attention/cuda/engine.hpp)
endif()
install(CODE "set(headers \"${public_headers}\")
set(source \"${CMAKE_CURRENT_SOURCE_DIR}\")
get_filename_component(destination \"${CMAKE_INSTALL_INCLUDEDIR}\" ABSOLUTE BASE_DIR \"\${CMAKE_INSTALL_PREFIX}\")")
install(CODE [[
set(next 0)
list(LENGTH headers length)
while(next LESS length)
  list(GET headers ${next} header)
  get_filename_component(folder "${header}" DIRECTORY)
  file(INSTALL "${source}/${header}" DESTINATION "${destination}/${folder}")
  file(STRINGS "${source}/${header}" includes REGEX "^#include \"ring_attention/")
  list(TRANSFORM includes REPLACE "^#include \"([^\"]+)\".*" "\\1")
  list(APPEND headers ${includes})
  list(REMOVE_DUPLICATES headers)
  list(LENGTH headers length)
  math(EXPR next "${next} + 1")
endwhile()
]])
install(
  EXPORT ring_attention_targets
  NAMESPACE ring_attention::
  DESTINATION "${package_dir}")

if(RING_ATTENTION_HAS_CUDA)
  # An export of its own: who has no CUDA can use the rest.
  install(TARGETS ring_attention_cuda EXPORT ring_attention_cuda_targets)
  install(
    EXPORT ring_attention_cuda_targets
    NAMESPACE ring_attention::
    DESTINATION "${package_dir}")
  install(FILES cmake/FindNCCL.cmake DESTINATION "${package_dir}")
endif()

configure_package_config_file(
  cmake/ring_attentionConfig.cmake.in "${CMAKE_CURRENT_BINARY_DIR}/ring_attentionConfig.cmake"
  INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/ring_attentionConfigVersion.cmake"
                                 COMPATIBILITY SameMajorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/ring_attentionConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/ring_attentionConfigVersion.cmake"
              cmake/ring_attention_find_eigen.cmake
              cmake/ring_attention_find_mpi.cmake
        DESTINATION "${package_dir}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# ring_attention.pc, for pkg-config.
file(RELATIVE_PATH ring_attention_pc_include "${CMAKE_INSTALL_FULL_LIBDIR}" "${CMAKE_INSTALL_FULL_INCLUDEDIR}")
set(ring_attention_pc_cflags "")
foreach(folder IN LISTS MPI_CXX_INCLUDE_DIRS)
  string(APPEND ring_attention_pc_cflags " -I${folder}")
endforeach()
list(JOIN MPI_CXX_LIBRARIES " " ring_attention_pc_libs)
string(STRIP "${ring_attention_pc_cflags}" ring_attention_pc_cflags)
configure_file(cmake/ring_attention.pc.in "${CMAKE_CURRENT_BINARY_DIR}/ring_attention.pc" @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/ring_attention.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
