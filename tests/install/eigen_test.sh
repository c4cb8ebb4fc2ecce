#!/bin/sh
# Which versions of Eigen are accepted: a project that includes the file that finds Eigen for the build and for the
# installed package is configured against stand-ins, which accept requests for their own major version only, as Eigen does.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project(eigen LANGUAGES NONE)
include("$RING_ATTENTION_SOURCE/src/cmake/ring_attention_find_eigen.cmake")
if(NOT Eigen3_FOUND)
  message(STATUS "refused: \${ring_attention_no_eigen}")
elseif(TARGET Eigen3::Eigen)
  message(STATUS "accepted: \${Eigen3_VERSION}")
endif()
END
expect() { # the version of a stand-in, and what is said about it
  echo "Eigen $1: $2"
  mkdir -p "$work/eigen/$1"
  echo 'add_library(Eigen3::Eigen INTERFACE IMPORTED)' >"$work/eigen/$1/Eigen3Config.cmake"
  cat >"$work/eigen/$1/Eigen3ConfigVersion.cmake" <<END
set(PACKAGE_VERSION $1)
if(NOT PACKAGE_FIND_VERSION OR PACKAGE_FIND_VERSION_MAJOR EQUAL ${1%%.*})
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
END
  cmake -S "$work" -B "$work/build" -DEigen3_DIR="$work/eigen/$1" >"$work/log" 2>&1
  grep -q -e "-- $2" "$work/log" || { cat "$work/log" >&2; exit 1; }
}
expect 3.4.0 'accepted: 3.4.0'
expect 5.0.1 'accepted: 5.0.1'
expect 3.3.9 'refused: Eigen 3.4 or newer was not found: version 3.3.9 in .*/3.3.9 is too old'

# Both include that file.
for file in CMakeLists.txt src/cmake/ring_attentionConfig.cmake.in; do
  grep -q '^include(.*ring_attention_find_eigen' "$RING_ATTENTION_SOURCE/$file" || { echo "not included in $file" >&2; exit 1; }
done
