#!/bin/sh
# The project as a part of another one, the one that docs/cpp.md shows: only the library is built and nothing is installed,
# unless the other project asks for it, and the other project's build type stays what it was.
#
#     subproject_test.sh CXX_COMPILER       with the environment that tests/CMakeLists.txt gives
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sh "$RING_ATTENTION_SOURCE/tests/install/project_of_page.sh" FetchContent "$work"
ln -s "$RING_ATTENTION_SOURCE" "$work/ring_attention"
cxx=$1
configure() {
  cmake -S "$work" -B "$work/build" -G 'Unix Makefiles' -DCMAKE_CXX_COMPILER="$cxx" "$@" >"$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
}
installed() { find "$work/build" -name cmake_install.cmake -exec grep -h 'file(INSTALL' {} +; }

configure
echo 'the targets of the parent:'
# Rules such as `_deps/ring_attention-build/src/all: _deps/ring_attention-build/src/CMakeFiles/ring_attention.dir/all`
sed -n '/^[^:]*CMakeFiles/d; s|^[^:]*all: .*/\([^/]*\)\.dir/all$|\1|p' \
  "$work/build/CMakeFiles/Makefile2" | sort -u | tee "$work/targets"
if grep -v -x -e my_program -e ring_attention -e ring_attention_headers -e 'ring_attention_kernels_.*' "$work/targets"; then
  echo 'above: targets that the parent did not ask for' >&2
  exit 1
fi
grep -q -x my_program "$work/targets"
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
