# Finds Eigen3::Eigen, of any version from 3.4 on; otherwise Eigen3_FOUND is false, and ring_attention_no_eigen says what
# was found instead.
#
# Used by this project's build and, installed beside the package config, by projects that say find_package(ring_attention).
# find_package gets no version: Eigen's version file accepts requests for its own major version only, and after 3.4 came 5.

find_package(Eigen3 QUIET NO_MODULE PATHS ${ring_attention_eigen_paths})
set(ring_attention_no_eigen "Eigen 3.4 or newer was not found")
if(Eigen3_FOUND AND Eigen3_VERSION VERSION_LESS 3.4)
  string(APPEND ring_attention_no_eigen ": version ${Eigen3_VERSION} in ${Eigen3_DIR} is too old")
  set(Eigen3_FOUND FALSE)
endif()
