#!/bin/sh
# The tests of attention and of the fast engines on arm64, with the NEON kernels, on a machine that has none: they are
# cross-compiled, and run under an emulator. Skipped where these are missing (Debian: g++-aarch64-linux-gnu, qemu-user,
# libgtest-dev, libeigen3-dev).

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
mkdir "$objects/library"
trap 'rm -rf "$objects"' EXIT

# One line of options for each object.
commands() {
  for kernel in forward forward_1_vector forward_2_vector backward product; do
    for real in float:4 double:8; do
      echo "-O3 -DRING_ATTENTION_ISA=neon_${real%:*} -DRING_ATTENTION_REAL=${real%:*}" \
        "-DRING_ATTENTION_REAL_BYTES=${real#*:} -c src/ring_attention/cpu/${kernel}_kernel.cpp" \
        "-o $objects/${kernel}_${real%:*}.o"
    done
  done
  for kernel in forward forward_1_vector forward_2_vector backward sum; do
    echo "-O3 -DRING_ATTENTION_ISA=neon_float -c src/ring_attention/cpu/exact/${kernel}_kernel.cpp" \
      "-o $objects/exact_$kernel.o"
  done
  for source in tests/cpu/*_test.cpp tests/attention/*_test.cpp "$googletest/src/gtest-all.cc" \
    "$googletest/src/gtest_main.cc"; do
    echo "-O1 -c $source -o $objects/$(echo "$source" | tr / _).o"
  done
  # All that these may call: what has no MPI and no GPU.
  find tests/support src/ring_attention/attention src/ring_attention/core src/ring_attention/cpu src/ring_attention/ring \
    src/ring_attention/parallel -name '*.cpp' ! -name '*_kernel.cpp' ! -name '*staged*' ! -name '*nccl*' ! -name '*cuda*' \
    -exec grep -L mpi {} + | while read -r source; do
    echo "-O1 -c $source -o $objects/library/$(echo "$source" | tr / _).o"
  done
}
commands | xargs -P "$(getconf _NPROCESSORS_ONLN)" -L 1 "$compiler" -std=c++20 -w -ffp-contract=off -Isrc -Itests \
  -isystem "$eigen" -isystem "$googletest/include" -isystem "$googletest" -DEIGEN_DONT_PARALLELIZE \
  -DGTEST_CAN_STREAM_RESULTS_=0

"${compiler%g++}ar" rcs "$objects/library.a" "$objects"/library/*.o
"$compiler" -static -o "$objects/program" "$objects"/*.o "$objects/library.a" -lpthread
"$emulator" "$objects/program" --gtest_brief=1
