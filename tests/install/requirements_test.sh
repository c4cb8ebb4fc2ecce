#!/bin/sh
# What CMake says about tools and libraries that are missing or too old, and which versions it accepts: projects of a few
# lines include one file of src/cmake each and are configured with stand-ins.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

stand_in() { # a package, its version: a package that accepts requests for its own major version only, as Eigen does
  mkdir -p "$work/$1_$2"
  echo "add_library(Eigen3::Eigen INTERFACE IMPORTED)" >"$work/$1_$2/$1Config.cmake"
  cat >"$work/$1_$2/$1ConfigVersion.cmake" <<END
set(PACKAGE_VERSION $2)
if(NOT PACKAGE_FIND_VERSION OR
   (PACKAGE_FIND_VERSION_MAJOR EQUAL ${2%%.*} AND PACKAGE_FIND_VERSION VERSION_LESS_EQUAL $2))
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()
END
}
configure() { # lines of a project, CMake's arguments
  rm -rf "$work/build"
  mkdir -p "$work/project"
  printf 'cmake_minimum_required(VERSION 3.22)\nproject(tools LANGUAGES NONE)\n%s\n' "$1" \
    >"$work/project/CMakeLists.txt"
  shift
  cmake -S "$work/project" -B "$work/build" -DCMAKE_MODULE_PATH="$RING_ATTENTION_SOURCE/src/cmake;$work" "$@" \
    >"$work/log" 2>&1
}
says() { # what CMake says. It breaks the lines of an error.
  tr -s ' \n' ' ' <"$work/log" | grep -q -e "$1" && return
  echo "missing: $1" >&2
  cat "$work/log" >&2
  exit 1
}

echo 'Eigen: version 5 as well as 3.4, and none that is older'
for file in CMakeLists.txt src/cmake/ring_attentionConfig.cmake.in; do # the build and the installed package
  grep -q '^include(.*ring_attention_find_eigen' "$RING_ATTENTION_SOURCE/$file" ||
    { echo "not included in $file" >&2; exit 1; }
done
eigen='include(ring_attention_find_eigen)
if(Eigen3_FOUND AND TARGET Eigen3::Eigen)
  message(STATUS "accepted: ${Eigen3_VERSION}")
else()
  message(STATUS "refused: ${ring_attention_no_eigen}")
endif()'
for version in 3.4.0 5.0.1 3.3.9; do
  stand_in Eigen3 $version
  configure "$eigen" -DEigen3_DIR="$work/Eigen3_$version"
  case $version in
    3.3.9) says 'refused: Eigen 3.4 or newer was not found: version 3.3.9 in .*Eigen3_3.3.9 is too old' ;;
    *) says "accepted: $version" ;;
  esac
done

echo 'compilers that are too old: another one, and a fresh build folder'
for compiler in GNU/11.4.0 GNU/12.2.0 Clang/15.0.7 Clang/16.0.6; do
  result=accepted
  configure "set(CMAKE_CXX_COMPILER_ID ${compiler%/*})
set(CMAKE_CXX_COMPILER_VERSION ${compiler#*/})
include(RingAttentionOptions)" || result=refused
  case $compiler in
    GNU/11*) says 'g++ 11.4.0 is too old: 12 .* Remedy: .*g++-12`, `make clean` and CXX=g++-12' ;;
    Clang/15*) says 'Clang 15.0.7 is too old' ;;
    *) [ $result = accepted ] || says "that $compiler is accepted" ;;
  esac
done

echo 'the Python module: no Python, no headers, an old pybind11'
python='set(RING_ATTENTION_AUTO AUTO)
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF) # not the pybind11 of this system
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
include(python)'
left_out='The Python module is left out. Missing:'
configure "$python" -DPython_EXECUTABLE=_Python_EXECUTABLE-NOTFOUND -DCMAKE_DISABLE_FIND_PACKAGE_Python=ON
says "$left_out Python 3.9 or later. Remedy: \`sh setup.sh python\`."
configure "$python" -DPython_EXECUTABLE=/bin/false -DCMAKE_DISABLE_FIND_PACKAGE_Python=ON
says "$left_out the headers of Python, 3.9 or later, for /bin/false. Remedy: \`sh setup.sh python\`."
echo 'set(Python_FOUND TRUE)' >"$work/FindPython.cmake"
stand_in pybind11 2.9.1
set -- -DPython_EXECUTABLE=/bin/false -Dpybind11_DIR="$work/pybind11_2.9.1"
configure "$python" "$@"
old="pybind11 2.10 or later (there is 2.9.1). Remedy: \`/bin/false -m pip install 'pybind11>=2.10'\`."
says "$left_out $old"
if configure "$python" -DRING_ATTENTION_PYTHON=ON "$@"; then says 'an error'; fi
says "RING_ATTENTION_PYTHON is ON, and the module cannot be built. Missing: $old"
