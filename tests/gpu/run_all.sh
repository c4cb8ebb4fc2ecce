#!/usr/bin/env bash
# Runs everything that needs a GPU, on a machine that may have no package registry: build, tests, compute-sanitizer,
# benchmark. Takes under 9 minutes. If a stage fails or takes too long, the next one still runs. The last lines are a
# short table. Exit code 0: every stage ran and passed. A skipped test counts as a failure here.
#
#     tests/gpu/run_all.sh [OUT]      logs and results go to OUT (default build/gpu/results)
#
# Dependencies are taken from RING_ATTENTION_DEPS, or unpacked by .gpukit/unpack.sh if that exists. Only the
# architecture of this machine's GPU is compiled.
set -u
cd "$(dirname "$0")/../.." || exit
build=build/gpu
out=${1:-$build/results}
mkdir -p "$out"
jobs=$(nproc)

capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
if [ -z "$capability" ]; then
  echo "skipped: nvidia-smi names no GPU"
  exit 77
fi
architecture=$capability-real
[ "$capability" = 90 ] && architecture=90a-real

table=
failed=0
if [ -f .gpukit/unpack.sh ]; then
  set +u
  # shellcheck disable=SC1091
  if ! . .gpukit/unpack.sh "${GPUKIT_PREFIX:-/opt/gpukit}"; then
    table=$'.gpukit/unpack.sh FAILED\n' failed=1
  fi
  set -u
  RING_ATTENTION_DEPS=${RING_ATTENTION_DEPS:-${GPUKIT_PREFIX:-/opt/gpukit}/usr}
fi

# stage NAME SECONDS COMMAND...: runs the command, stores its output in OUT/NAME.log, adds the result to the table
stage() {
  local name=$1 limit=$2 begin=$SECONDS verdict
  shift 2
  printf '\n===== %s (%d s so far)\n' "$name" "$SECONDS"
  timeout --kill-after=5 "$limit" "$@" >"$out/$name.log" 2>&1
  case $? in
    0) verdict=ok ;;
    77) verdict=$(tail -n 1 "$out/$name.log") failed=1 ;; # skipped: why
    124 | 137) verdict="STOPPED after $limit s" failed=1 ;;
    *) verdict=FAILED failed=1 ;;
  esac
  tail -n 12 "$out/$name.log"
  table+=$(printf '%-10s %4d s  %s' "$name" $((SECONDS - begin)) "$verdict")$'\n'
}

# For an unpacked MPI use the wrapper in PATH, which has the right folder. CMake would prefer the wrapper beside the
# library, which is configured for /usr.
configure() {
  local wrapper launcher
  wrapper=$(command -v mpicxx) launcher=$(command -v mpiexec)
  cmake --preset release -B "$build" -DRING_ATTENTION_CUDA=ON -DRING_ATTENTION_TESTS=ON \
    -DCMAKE_CUDA_ARCHITECTURES="$architecture" ${RING_ATTENTION_DEPS:+-DRING_ATTENTION_DEPS="$RING_ATTENTION_DEPS"} \
    ${wrapper:+-DMPI_CXX_COMPILER="$wrapper"} ${launcher:+-DMPIEXEC_EXECUTABLE="$launcher"} &&
    cmake --build "$build" --parallel "$jobs" --target ring_attention_benchmark gpu_tests ring-attention
}

# Ends within the time of its stage, so that ctest names the test that it stops. With a GPU no test may be skipped.
tested() {
  ctest --parallel 4 --test-dir "$build" --label-regex '^gpu$' --output-on-failure --no-tests=error \
    --stop-time "$(date -d '+170 seconds' +%T)" | tee "$out/ctest.txt"
  local code=${PIPESTATUS[0]}
  if grep -F '***Skipped' "$out/ctest.txt"; then code=1; fi
  return "$code"
}

# sanitized TOOL: the stage has the name of the tool.
sanitized() {
  compute-sanitizer --tool "$1" --error-exitcode 9 "$build/tests/cuda/gpu_cuda" --source=cuda/kernels_test.cpp \
    --gtest_filter='*RandomProblems:*OverwriteAFreshState*' &&
    grep -q '^\[  PASSED  \] [1-9]' "$out/$1.log"
}

export -f sanitized configure tested
export build out jobs architecture RING_ATTENTION_DEPS

nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.max.sm,memory.total --format=csv | tee "$out/gpu.txt"
stage build 170 bash -c configure
stage tests 180 bash -c tested
stage memcheck 45 env RING_ATTENTION_CASES=3 bash -c 'sanitized memcheck'
stage racecheck 45 env RING_ATTENTION_CASES=1 bash -c 'sanitized racecheck'
left=$((530 - SECONDS)) # of 9 minutes
stage benchmark $((left > 20 ? left : 20)) python3 tests/benchmarks/cuda/bench_cuda.py \
  "$(find "$build" -name libring_attention_benchmark.so)" --seconds $((left > 60 ? left - 40 : 20)) \
  --out "$out/benchmark.json"

printf '\n===== %s, %d s\n' "$(head -n 2 "$out/gpu.txt" | tail -n 1)" "$SECONDS"
grep -E '\*\*\*(Skipped|Failed|Timeout|Exception|Not Run)' "$out/ctest.txt" 2>/dev/null
printf '%s' "$table"
exit $failed
