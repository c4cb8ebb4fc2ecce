#!/bin/sh
# Configures as `make run` and `make test` do, on a machine with and without an NVIDIA driver, and looks at whether the
# GPU parts are wanted, and at the reason if they cannot be had. No compiler for them is needed.
#
#     driver_test.sh CXX_COMPILER       with the environment that tests/CMakeLists.txt gives
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

printf '#!/bin/sh\necho "NVIDIA-SMI has failed. NVML library version: 535.1"\nexit 9\n' >"$work/no_driver"
printf '#!/bin/sh\necho 9.0\n' >"$work/driver"
chmod +x "$work/no_driver" "$work/driver"

configure() { # the folder, settings
  build=$work/$1
  shift
  CUDACXX="$nvcc" cmake -S "$RING_ATTENTION_SOURCE" -B "$build" -DCMAKE_CXX_COMPILER="$cxx" \
    -DRING_ATTENTION_CUDA_HERE=ON -DRING_ATTENTION_PROGRAMS=OFF -DRING_ATTENTION_PYTHON=OFF "$@" >"$work/log" 2>&1
}
says() { # what the configuration says: CMake breaks the lines of an error
  tr -s ' \n' ' ' <"$work/log" | grep -q -e "$1" && return
  echo "missing: $1" >&2
  cat "$work/log" >&2
  exit 1
}
expect() { # what the configuration says, its folder, its settings
  text=$1
  shift
  configure "$@" || says 'a configuration that succeeds'
  says "$text"
}
refused() { # the same, where the GPU parts are an error
  text=$1
  shift
  if configure "$@" -DRING_ATTENTION_CUDA=ON; then says 'an error'; fi
  says "RING_ATTENTION_CUDA is ON, and $text"
}
cxx=$1
nvcc=$work/none
left_out='The GPU parts are left out: no NVIDIA driver .*`make test`.*-DRING_ATTENTION_CUDA=ON'
looked_for='The GPU parts are left out: no CUDA compiler'

echo 'without a driver `make run` leaves them out, and `make test` in the same folder does not'
expect "$left_out" without -DRING_ATTENTION_NVIDIA_SMI="$work/no_driver"
expect "$looked_for" without -DRING_ATTENTION_TESTS=ON
echo '`make run` after `make test` changes nothing'
expect "$looked_for" without

echo 'with a driver both have them'
expect "$looked_for" with -DRING_ATTENTION_NVIDIA_SMI="$work/driver"

echo 'a CMake that does not know sm_90a is too old for them'
echo 'set(CMAKE_VERSION 3.22.1)' >"$work/old.cmake"
too_old='CMake 3.22.1 does not know sm_90a, .*: install a newer CMake'
expect "The GPU parts are left out: $too_old" old -DRING_ATTENTION_TESTS=ON -DCMAKE_PROJECT_INCLUDE="$work/old.cmake"
refused "$too_old" old

echo 'an nvcc that does not work is not one that was not found'
cat >"$work/nvcc" <<'END'
#!/bin/sh
for line in 1 2 3 4 5 6; do echo "line $line" >&2; done
echo 'host_config.h: #error -- unsupported GNU version!' >&2
exit 2
END
chmod +x "$work/nvcc"
nvcc=$work/nvcc
not_working="$work/nvcc does not work: line 3 .*unsupported GNU version! (exit code 2) .*CUDAHOSTCXX=g++-NN"
expect "The GPU parts are left out: $not_working" broken -DRING_ATTENTION_TESTS=ON
refused "$not_working" broken
