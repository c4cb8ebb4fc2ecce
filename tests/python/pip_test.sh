#!/bin/sh
# `pip install .`, into a folder of its own, without MPI and with it: metadata, version, calls on one process, on threads and
# on two ranks. It compiles the library. Nothing is fetched from a network: scikit-build-core has to be installed.
# First the package `ring_attention_diagnose`, which is pure Python.
#
#     pip_test.sh PYTHON       with the environment that tests/CMakeLists.txt gives
set -eu
python=$1

if ! "$python" -c 'import setuptools, pip, numpy, scikit_build_core, wheel' 2>/dev/null; then
  echo "skipped: $python has not all of pip, NumPy, scikit-build-core, setuptools and wheel"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

install() {
  "$python" -m pip install --verbose --no-index --no-deps --no-build-isolation --target "$work/site" \
    --config-settings=build-dir="$work/build" "$@" "$RING_ATTENTION_SOURCE" >"$work/log" 2>&1
}

echo 'ring_attention_diagnose: without a compiler and MPI'
cp -r "$RING_ATTENTION_SOURCE/src/python/ring_attention_diagnose" "$work/diagnose"
env PATH="$(dirname "$python")" CC=false CXX=false "$python" -m pip install --no-index --no-deps --no-build-isolation \
  --target "$work/site" "$work/diagnose" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
(cd "$work" && PYTHONPATH=$work/site "$python" -m ring_attention_diagnose cases --only full --out cases)

echo 'without Eigen: one line says what is missing'
if install --config-settings=cmake.define.CMAKE_DISABLE_FIND_PACKAGE_Eigen3=ON; then
  echo 'it was installed' >&2
  exit 1
fi
grep -q 'Eigen 3.4 or newer was not found. *Remedy: `sh setup.sh` installs Eigen' "$work/log" || { cat "$work/log" >&2; exit 1; }

version=$(sed -n 's/^ *VERSION \([0-9.]*\)$/\1/p' "$RING_ATTENTION_SOURCE/CMakeLists.txt")
for mpi in OFF AUTO; do
  echo "with Eigen, MPI=$mpi: installed"
  rm -rf "$work/site"
  install --config-settings=cmake.define.CMAKE_DISABLE_FIND_PACKAGE_Eigen3=OFF \
    --config-settings=cmake.define.RING_ATTENTION_MPI=$mpi || { cat "$work/log" >&2; exit 1; }
  ls -d "$work/site/ring_attention-$version.dist-info"
  PYTHONPATH=$work/site "$python" "$RING_ATTENTION_SOURCE/tests/python/wheel_program.py" $mpi
done
cat >"$work/use.py" <<'END'
import numpy as np
import ring_attention as ra

q = np.ones((2, 3, 4))
assert (ra.ring_attention(q, q, q, seq=3 * ra.size()).out == 1).all()
if ra.rank() == 0:
    print("ranks:", ra.size())
END
cd "$work"
PYTHONPATH=$work/site "$python" use.py | grep -x 'ranks: 1'
PYTHONPATH=$work/site "$MPIRUN" -n 2 "$python" use.py | grep -x 'ranks: 2'
