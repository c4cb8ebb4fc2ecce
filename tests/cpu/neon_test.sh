#!/bin/sh
# The tests of the fast engines with their NEON kernels, on a machine that has no NEON: cross-compiled, and run under
# an emulator. Skipped where these are missing (Debian: g++-aarch64-linux-gnu, qemu-user, libgtest-dev).

set -eu

compiler=${AARCH64_CXX:-aarch64-linux-gnu-g++}
emulator=${AARCH64_EMULATOR:-qemu-aarch64}
googletest=${GOOGLETEST_SOURCE:-/usr/src/googletest/googletest}
eigen=${EIGEN_INCLUDE:-/usr/include/eigen3}
for tool in "$compiler" "$emulator"; do
  command -v "$tool" > /dev/null || { echo "skipped: no $tool"; exit 77; }
done
for folder in "$googletest" "$eigen"; do
  [ -d "$folder" ] || { echo "skipped: no $folder"; exit 77; }
done

cd "$RING_ATTENTION_SOURCE"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT

compile() { # source, name of the object, flags
  source=$1 object=$objects/$2.o
  shift 2
  "$compiler" -std=c++20 -O1 -w -ffp-contract=off -Isrc -Itests -isystem "$eigen" -isystem "$googletest/include" \
    -isystem "$googletest" -DEIGEN_DONT_PARALLELIZE -DGTEST_CAN_STREAM_RESULTS_=0 "$@" -c "$source" -o "$object"
}

for kernel in forward forward_1_vector forward_2_vector backward product; do
  for real in float:4 double:8; do
    compile src/ring_attention/cpu/${kernel}_kernel.cpp kernel_${kernel}_${real%:*} -O3 -ffp-contract=fast \
      "-DRING_ATTENTION_ISA=neon_${real%:*}" "-DRING_ATTENTION_REAL=${real%:*}" "-DRING_ATTENTION_REAL_BYTES=${real#*:}"
  done
done
for source in src/ring_attention/core/compare.cpp src/ring_attention/core/error.cpp src/ring_attention/core/random.cpp \
  src/ring_attention/core/tensor.cpp src/ring_attention/core/text.cpp src/ring_attention/attention/*.cpp \
  src/ring_attention/cpu/backward.cpp src/ring_attention/cpu/engine.cpp src/ring_attention/cpu/isa.cpp \
  src/ring_attention/cpu/lanes.cpp src/ring_attention/cpu/threads.cpp src/ring_attention/ring/placement.cpp \
  "$googletest/src/gtest-all.cc" "$googletest/src/gtest_main.cc"; do
  compile "$source" "$(echo "$source" | tr / _)"
done

for test in engine backward; do
  compile tests/cpu/${test}_test.cpp test
  "$compiler" -static -o "$objects/program" "$objects"/*.o -lpthread
  "$emulator" "$objects/program" --gtest_brief=1
done
