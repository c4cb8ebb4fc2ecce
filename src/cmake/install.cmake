# `cmake --install`: headers, library, and a package that find_package(ring_attention) finds.

include(CMakePackageConfigHelpers)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/ring_attention")

install(TARGETS ring_attention EXPORT ring_attention_targets)
install(
  DIRECTORY ring_attention
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
  FILES_MATCHING
  PATTERN "*.hpp")
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
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/ring_attentionConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/ring_attentionConfigVersion.cmake"
              cmake/ring_attention_find_mpi.cmake
        DESTINATION "${package_dir}")
