#!/usr/bin/env bash
# Runs what needs a GPU, on a machine that may have no package registry: all stages, or those that are named.
#
#     tests/gpu/run_all.sh [STAGE...]      build tests rings sanitizers benchmark
#
#     build       configures and compiles for this machine's GPU only
#     tests       every test with the label gpu, but rings
#     rings       several ranks that share the GPUs, and the lessons over NCCL
#     sanitizers  compute-sanitizer: memcheck, then racecheck
#     benchmark   all kernels beside PyTorch's
#
# What is built is kept between calls. If a stage fails or takes too long, the next one still runs. At the end there are a
# short table, and the name of an archive of OUT: what a report of a failure needs. It has the logs, the GPUs, the driver,
# the versions and the figures. Exit code 0: every stage ran and passed. A skipped test counts as a failure here.
#
# Environment: BUILD, the build folder (build/gpu); OUT, for logs and results (BUILD/results); SECONDS_OF_BENCHMARK, after
# which the benchmark begins no new case (240); RING_ATTENTION_DEPS, a prefix with the dependencies. Without it they are
# unpacked by .gpukit/unpack.sh if that exists.
set -u
cd "$(dirname "$0")/../.." || exit
build=${BUILD:-build/gpu}
out=${OUT:-$build/results}
jobs=$(nproc)
seconds_of_benchmark=${SECONDS_OF_BENCHMARK:-240}

all="build tests rings sanitizers benchmark"
for stage in "$@"; do
  case " $all " in
    *" $stage "*) ;;
    *)
      echo "error: no stage is called $stage: use $all" >&2
      exit 2
      ;;
  esac
done
wanted=" ${*:-$all} "

# The newest GPU: an old one for the display is not used.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -rn | head -n 1 | tr -d .)
case $capability in
  '' | *[!0-9]*) # it may print an error
    echo "skipped: nvidia-smi names no GPU"
    exit 77
    ;;
esac
architecture=$capability-real
[ "$capability" = 90 ] && architecture=90a-real
mkdir -p "$out"

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

# step STAGE NAME SECONDS COMMAND...: runs the command if the stage is wanted, stores its output in OUT/NAME.log, adds the
# result to the table
step() {
  local stage=$1 name=$2 limit=$3 begin=$SECONDS verdict
  shift 3
  case $wanted in *" $stage "*) ;; *) return ;; esac
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
# library, which is configured for /usr. Without one CMake chooses: the wrapper in PATH may be that of an MPI that will not
# do. A warning of an untried compiler must not end the build.
build() {
  local wrapper='' launcher='' generator=()
  if [ -n "${RING_ATTENTION_DEPS:-}" ]; then wrapper=$(command -v mpicxx) launcher=$(command -v mpiexec); fi
  if [ ! -f "$build/CMakeCache.txt" ] && command -v ninja >/dev/null; then generator=(-G Ninja); fi
  cmake --preset release "${generator[@]}" -B "$build" -DRING_ATTENTION_CUDA=ON -DRING_ATTENTION_TESTS=ON \
    -DRING_ATTENTION_WERROR=OFF -DCMAKE_CUDA_ARCHITECTURES="$architecture" \
    ${RING_ATTENTION_DEPS:+-DRING_ATTENTION_DEPS="$RING_ATTENTION_DEPS"} \
    ${wrapper:+-DMPI_CXX_COMPILER="$wrapper"} ${launcher:+-DMPIEXEC_EXECUTABLE="$launcher"} &&
    cmake --build "$build" --parallel "$jobs" --target ring_attention_benchmark gpu_tests ring-attention
}

# tested NAME SECONDS ARGUMENT...: ctest with these arguments. It ends within the time of its stage, so that it names the
# test that it stops. With a GPU no test may be skipped.
tested() {
  local name=$1 limit=$2 code
  shift 2
  ctest --parallel "$jobs" --test-dir "$build" --label-regex '^gpu$' --output-on-failure --no-tests=error \
    --stop-time "$(date -d "+$limit seconds" +%T)" "$@" | tee "$out/$name.txt"
  code=${PIPESTATUS[0]}
  if grep -F '***Skipped' "$out/$name.txt"; then code=1; fi
  return "$code"
}

# sanitized TOOL CASES ARGUMENT...: the step has the name of the tool.
sanitized() {
  local tool=$1 sanitizer
  sanitizer=$(PATH=$PATH:${CUDA_PATH:-/usr/local/cuda}/bin command -v compute-sanitizer)
  if [ -z "$sanitizer" ]; then
    echo "skipped: there is no compute-sanitizer in PATH or CUDA_PATH"
    return 77
  fi
  export RING_ATTENTION_CASES=$2
  shift 2
  "$sanitizer" --tool "$tool" --error-exitcode 9 "$@" "$build/tests/cuda/gpu_cuda" --source=cuda/kernels_test.cpp \
    --gtest_filter='*RandomProblems:*OverwriteAFreshState*' &&
    grep -q '^\[  PASSED  \] [1-9]' "$out/$tool.log"
}

# racecheck does not see that an mbarrier orders the writes of cp.async.bulk before the reads of other warps, and reports
# hazards that do not exist (FlashAttention, AI/RACECHECK_TMA_HAZARD.md); copies with a tensor map are not affected. These
# kernels use cp.async.bulk: attend_tiles of kernels 6 and 7, and the wgmma kernels of dK,dV, which take AllQueries.
not_for_racecheck="--kernel-name-exclude kernel_substring=attend_tiles --kernel-name-exclude kernel_substring=AllQueries"

# shown COMMAND...: the command, and the first lines that it prints
shown() {
  printf '\n$ %s\n' "$*"
  "$@" 2>&1 | head -n 6
}
# used NAME DEFAULT: the program that CMake took
used() {
  local path
  path=$(sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt" 2>/dev/null)
  echo "${path:-$2}"
}
versions() {
  shown git describe --always --dirty
  shown uname -srm
  shown grep PRETTY_NAME /etc/os-release
  shown cmake --version
  shown "$(used CMAKE_CUDA_COMPILER nvcc)" --version
  shown "$(used CMAKE_CXX_COMPILER c++)" --version
  shown "$(used MPI_CXX_COMPILER mpicxx)" -v # MPICH and Open MPI name themselves
  shown "$build/mpirun" --version
  shown grep -h 'GPU parts:' "$out/build.log" # with NCCL's version
  shown nvidia-smi topo -m
}

ranks='^gpu\.rings$|_nccl'
export -f sanitized build tested
export build out jobs architecture ranks not_for_racecheck RING_ATTENTION_DEPS

main() {
  nvidia-smi --query-gpu=index,name,compute_cap,driver_version,clocks.sm,clocks.max.sm,memory.total --format=csv |
    tee "$out/gpu.txt"
  # shellcheck disable=SC2016 # the bash of a step expands them
  {
    step build build 480 bash -c build
    step tests tests 300 bash -c 'tested tests 285 --exclude-regex "$ranks"'
    step rings rings 420 bash -c 'tested rings 405 --tests-regex "$ranks"'
    step sanitizers memcheck 240 bash -c 'sanitized memcheck 2'
    step sanitizers racecheck 240 bash -c 'sanitized racecheck 1 $not_for_racecheck'
    step benchmark benchmark $((seconds_of_benchmark + 60)) python3 tests/benchmarks/cuda/bench_cuda.py \
      "$(find "$build" -name libring_attention_benchmark.so 2>/dev/null)" --seconds "$seconds_of_benchmark" \
      --out "$out/benchmark.json"
  }

  printf '\n===== %s, %d s\n' "$(head -n 2 "$out/gpu.txt" | tail -n 1)" "$SECONDS"
  for stage in tests rings; do
    case $wanted in *" $stage "*) grep -E '\*\*\*(Skipped|Failed|Timeout|Exception|Not Run)' "$out/$stage.txt" 2>/dev/null ;; esac
  done
  printf '%s' "$table"
  return $failed
}

main 2>&1 | tee "$out/run_all.log"
code=${PIPESTATUS[0]}
versions >"$out/versions.txt" 2>&1
archive=$(dirname "$out")/ring-attention-gpu-$(date +%Y%m%d-%H%M%S).tar.gz
tar -czf "$archive" -C "$(dirname "$out")" "$(basename "$out")" && echo "To report it, send $archive"
exit "$code"
