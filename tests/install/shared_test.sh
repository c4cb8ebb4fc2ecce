#!/bin/sh
# A shared library, installed: the program and programs of others find it, in whatever folder they are.
#
#     shared_test.sh CXX_COMPILER CXX_FLAGS      with the environment that tests/CMakeLists.txt gives
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake -S "$RING_ATTENTION_SOURCE" -B "$work/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DCMAKE_UNITY_BUILD=ON \
  -DRING_ATTENTION_CUDA=OFF -DRING_ATTENTION_PYTHON=OFF -DRING_ATTENTION_TESTS=OFF -DCMAKE_CXX_COMPILER="$1" \
  -DCMAKE_CXX_FLAGS="${2-}"
cmake --build "$work/build" --parallel 2 --target ring-attention
cmake --install "$work/build" --prefix "$work/first"
mv "$work/first" "$work/prefix"
mv "$work/build" "$work/moved" # so that nothing is found there

find "$work/prefix" -name 'libring_attention*'
version=$(sed -n 's/^  VERSION //p' "$RING_ATTENTION_SOURCE/CMakeLists.txt")
"$work/prefix/bin/ring-attention" --version | grep -F "$version"
"$MPIRUN" -n 3 "$work/prefix/bin/ring-attention" run --random 1,2,9,4 --check

mv "$work/moved" "$work/build"
RING_ATTENTION_BUILD=$work/build
LD_LIBRARY_PATH=$(dirname "$(find "$work/prefix" -name 'libring_attention.*' | head -n 1)") # pkg-config gives no rpath
export RING_ATTENTION_BUILD LD_LIBRARY_PATH
sh "$RING_ATTENTION_SOURCE/tests/install/find_package_test.sh" "$@"
