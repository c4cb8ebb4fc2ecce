#!/bin/sh
# What `make run` does once everything is built: a small real problem on 4 ranks, then all lessons.
#
#     sh lessons/make_run.sh [BUILD FOLDER]     (default: build/release)
#
# Each command is shown before it runs, to be copied from the top of the repository.

set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build/release}
[ -d "$build" ] || { echo "error: $build: no such build folder: run make run" >&2; exit 2; }
build=$(cd "$build" && pwd)
cd "$root"
build=${build#"$root"/}
example=$build/example

show() {
  echo
  echo "\$ $*"
  "$@"
}

echo 'A small real problem: the bytes of README.md become tokens, and fixed random projections make'
echo 'queries, keys and values of them. Four ranks share them; each sees a quarter of the keys at a time.'

failed=0
show "$build/ring-attention" example --text README.md --out "$example" &&
  show "$build/mpirun" -n 4 "$build/ring-attention" run --q "$example/q.npy" --k "$example/k.npy" \
    --v "$example/v.npy" --out "$example/results" --causal --check --np 4 || failed=$?

echo
echo 'The whole algorithm in one file, lessons/00_attention/ring_attention.cpp, and its difference from dense attention:'
show "$build/mpirun" -n 4 "$build/lessons/00_ring_attention" || failed=$?

show sh lessons/run_all.sh "$build" || failed=$?
if [ "$failed" -ne 0 ]; then
  echo 'error: something above failed' >&2
  exit "$failed"
fi
