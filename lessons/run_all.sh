#!/bin/sh
# Runs every lesson and ends with one table.
#
#     sh lessons/run_all.sh [--emulated] [BUILD FOLDER]      (default: build/release)
#
# With --emulated it runs the GPU lessons, on the emulator (emulator/README.md). `make gpu-lessons` builds them.
# Lessons that send messages run on 4 ranks; NP=8 sh lessons/run_all.sh ... takes 8. What each lesson
# printed is kept in <build folder>/lessons/output. Exit code 1 when a lesson failed or was not built; a GPU lesson
# that is skipped, because there is no GPU, is no failure, nor is one that the build has left out, because there is no CUDA.

set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
programs=lessons
make=lessons
if [ "${1:-}" = --emulated ]; then
  programs=lessons/emulated
  make=gpu-lessons
  shift
fi
build=${1:-$root/build/release}
ranks=${NP:-4}
[ -d "$build" ] || { echo "error: $build: no such build folder: run make $make" >&2; exit 2; }
build=$(cd "$build" && pwd)
output=$build/$programs/output
mkdir -p "$output"
export MPIEXEC_TIMEOUT="${MPIEXEC_TIMEOUT:-120}" # seconds after which the launcher ends a lesson that hangs

# lessons/NN_name/main.cpp is the program NN_name, gpu/main.cpp there NN_name_cuda, and nccl/main.cpp NN_name_nccl.
lesson_of() {
  folder=$(dirname "$1")
  case $folder in
    */gpu) echo "$(basename "$(dirname "$folder")")_cuda" ;;
    */nccl) echo "$(basename "$(dirname "$folder")")_nccl" ;;
    *) basename "$folder" ;;
  esac
}

run_lesson() { # its source
  if grep -q 'mpi_main(' "$1"; then
    share=''
    case $1 in */nccl/main.cpp) share=--share-gpu ;; esac # more ranks than GPUs do, to see that it is right
    "$build/mpirun" -n "$ranks" "$build/$programs/$(lesson_of "$1")" --expect-ranks "$ranks" $share
  else
    "$build/$programs/$(lesson_of "$1")"
  fi
}

needs_gpu() { # its source
  case $1 in */gpu/main.cpp | */nccl/main.cpp) return 0 ;; esac
  grep -q 'needs_gpu(' "$1"
}

# A lesson's last line is `lesson 05 blocking_ring: PASS | error 6.1e-07 | what it showed`.
last_line() { grep '^lesson [0-9][0-9] [a-z0-9_]*: [A-Z]* | error [^|]* | ' "$1" | tail -n 1; }

# What a build without CUDA or NCCL has no program for
left_out=0
is_left_out() { # its source
  [ $make = lessons ] && grep -q "^$(lesson_of "$1") " "$build/lessons/left_out.txt" 2> /dev/null
}

sources=''
for lesson in "$root"/lessons/[0-9][0-9]_*; do
  for program in "$lesson/main.cpp" "$lesson/gpu/main.cpp" "$lesson/nccl/main.cpp"; do
    [ -f "$program" ] || continue
    if [ $make = gpu-lessons ] && ! needs_gpu "$program"; then continue; fi
    if is_left_out "$program"; then left_out=$((left_out + 1)) && continue; fi
    sources="$sources $program"
  done
done
# shellcheck disable=SC2086 # names without spaces
set -- $sources
[ $# -gt 0 ] || { echo "error: there are no lessons in $root/lessons" >&2; exit 2; }

failed=0
skipped=0
number=0
: > "$output/table.txt"
for program; do
  lesson=$(lesson_of "$program")
  number=$((number + 1))
  printf '[%d/%d] %s ... ' "$number" $# "$lesson"
  text=$output/$lesson.txt
  if [ ! -x "$build/$programs/$lesson" ]; then
    echo 'not built'
    line="lesson ${lesson%%_*} ${lesson#*_}: MISSING | error - | not built: run make $make"
  else
    begin=$(date +%s)
    code=0
    run_lesson "$program" > "$text" 2>&1 < /dev/null || code=$?
    seconds=$(($(date +%s) - begin))
    line=$(last_line "$text") || true
    case $code$line in
      0*': PASS | '*) echo "PASS, $seconds s" ;;
      0*': SKIPPED | error - | '*)
        if [ $make = lessons ] && needs_gpu "$program"; then
          echo "SKIPPED, ${line##*| }"
          skipped=$((skipped + 1))
        else
          echo 'FAIL, it needs no GPU and was skipped'
          line=$(echo "$line" | sed 's/: SKIPPED |/: FAIL |/')
        fi
        ;;
      *)
        echo "FAIL, exit code $code, $seconds s. Its output:"
        sed 's/^/    /' "$text"
        [ -n "$line" ] || line="lesson ${lesson%%_*} ${lesson#*_}: FAIL | error - | ended without a verdict"
        line=$(echo "$line" | sed -e 's/: PASS |/: FAIL |/' -e 's/: SKIPPED |/: FAIL |/')
        ;;
    esac
  fi
  case $line in *': PASS | '* | *': SKIPPED | '*) ;; *) failed=$((failed + 1)) ;; esac
  echo "$line" >> "$output/table.txt"
done

echo
awk '
  BEGIN { row("lesson", "what it showed", "error", "verdict") }
  {
    verdict = $4; name = $2 " " $3; sub(/:$/, "", name)
    rest = $0; sub(/^[^|]*\| error /, "", rest)
    error = rest; sub(/ \|.*/, "", error)
    sub(/^[^|]*\| /, "", rest)
    row(name, rest, error, verdict)
  }
  function row(a, b, c, d) {
    cell[++rows, 1] = a; cell[rows, 2] = b; cell[rows, 3] = c; cell[rows, 4] = d
    for (i = 1; i <= 4; ++i) if (length(cell[rows, i]) > width[i]) width[i] = length(cell[rows, i])
  }
  END {
    line = "  %-" width[1] "s  %-" width[2] "s  %" width[3] "s  %s\n"
    for (r = 1; r <= rows; ++r) printf line, cell[r, 1], cell[r, 2], cell[r, 3], cell[r, 4]
  }' "$output/table.txt"
echo
if [ "$failed" -gt 0 ]; then
  echo "$failed of $number lessons did not pass. What each one printed: $output"
  exit 1
fi
if [ "$skipped" -gt 0 ]; then
  echo "All of $((number - skipped)) lessons passed, $skipped were skipped. What each one printed: $output"
else
  echo "All $number lessons passed. What each one printed: $output"
fi
if [ "$left_out" -gt 0 ]; then
  echo "$left_out more need a GPU, and this build has no $(cut -d' ' -f2 "$build/lessons/left_out.txt" | sort -u)"
fi
if [ $((skipped + left_out)) -gt 0 ]; then
  echo "To run those on an emulated GPU: make gpu-lessons"
fi
