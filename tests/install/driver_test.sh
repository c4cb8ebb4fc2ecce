# Configures as `make run` and `make test` do, on a machine with and without an NVIDIA driver, and looks at whether the
# GPU parts are wanted. No compiler for them is needed: none is found here, and the project says so where it looks.
#
#     driver_test.sh CXX_COMPILER       with the environment that tests/CMakeLists.txt gives
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

printf '#!/bin/sh\necho "NVIDIA-SMI has failed. NVML library version: 535.1"\nexit 9\n' >"$work/no_driver"
printf '#!/bin/sh\necho 9.0\n' >"$work/driver"
chmod +x "$work/no_driver" "$work/driver"

expect() { # what the configuration says, its folder, its settings
  text=$1
  build=$work/$2
  shift 2
  CUDACXX="$work/none" cmake -S "$RING_ATTENTION_SOURCE" -B "$build" -DCMAKE_CXX_COMPILER="$cxx" \
    -DRING_ATTENTION_CUDA_HERE=ON -DRING_ATTENTION_PROGRAMS=OFF -DRING_ATTENTION_PYTHON=OFF "$@" >"$work/log" 2>&1 &&
    grep -q -e "$text" "$work/log" && return
  echo "missing: $text" >&2
  cat "$work/log" >&2
  exit 1
}
cxx=$1
left_out='The GPU parts are left out: no NVIDIA driver .*`make test`.*-DRING_ATTENTION_CUDA=ON'
looked_for='The GPU parts are left out: no CUDA compiler'

echo 'without a driver `make run` leaves them out, and `make test` in the same folder does not'
expect "$left_out" without -DRING_ATTENTION_NVIDIA_SMI="$work/no_driver"
expect "$looked_for" without -DRING_ATTENTION_TESTS=ON
echo '`make run` after `make test` changes nothing'
expect "$looked_for" without

echo 'with a driver both have them'
expect "$looked_for" with -DRING_ATTENTION_NVIDIA_SMI="$work/driver"
