#!/bin/sh
# The project as a part of another one, as FetchContent makes it: only the library is built and nothing is installed,
# unless the other project asks for it, and the other project's build type stays what it was.
#
#     subproject_test.sh CXX_COMPILER       with the environment that tests/CMakeLists.txt gives
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.22)
project(parent LANGUAGES CXX)
add_subdirectory("$RING_ATTENTION_SOURCE" ring_attention)
add_executable(parent "$RING_ATTENTION_SOURCE/tests/install/own_program.cpp")
target_link_libraries(parent PRIVATE ring_attention::ring_attention)
END
cxx=$1
configure() {
  cmake -S "$work" -B "$work/build" -G 'Unix Makefiles' -DCMAKE_CXX_COMPILER="$cxx" "$@" >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
}
installed() { find "$work/build" -name cmake_install.cmake -exec grep -h 'file(INSTALL' {} +; }

configure
echo 'the targets of the parent:'
# Rules such as `ring_attention/src/all: ring_attention/src/CMakeFiles/ring_attention.dir/all`
sed -n '/^[^:]*CMakeFiles/d; s|^[^:]*all: .*/\([^/]*\)\.dir/all$|\1|p' \
  "$work/build/CMakeFiles/Makefile2" | sort -u | tee "$work/targets"
if grep -v -x -e parent -e ring_attention -e ring_attention_headers -e 'ring_attention_kernels_.*' "$work/targets"; then
  echo 'above: targets that the parent did not ask for' >&2
  exit 1
fi
grep -q -x parent "$work/targets"
grep -q -x ring_attention "$work/targets"
if grep '^CMAKE_BUILD_TYPE:[A-Z]*=.' "$work/build/CMakeCache.txt"; then
  echo 'above: a build type that the parent did not choose' >&2
  exit 1
fi
if installed; then
  echo 'above: files that the parent did not ask for' >&2
  exit 1
fi

echo 'and, where the parent asks for it, what is installed'
configure -DRING_ATTENTION_INSTALL=ON
installed | grep -q ring_attention.pc
