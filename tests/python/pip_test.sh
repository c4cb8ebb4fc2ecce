#!/bin/sh
# `pip install .`, into a folder of its own: metadata, version, one call on one process and on two ranks. It compiles the
# library. Nothing is fetched from a network: scikit-build-core has to be installed.
# First its dependency `ring_attention_diagnose`, which is pure Python.
#
#     pip_test.sh PYTHON       with the environment that tests/CMakeLists.txt gives
set -eu
python=$1

if ! "$python" -c 'import pip, numpy, scikit_build_core, setuptools, wheel' 2>/dev/null; then
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

echo 'with it: installed'
install --config-settings=cmake.define.CMAKE_DISABLE_FIND_PACKAGE_Eigen3=OFF || { cat "$work/log" >&2; exit 1; }
cat >"$work/use.py" <<'END'
import importlib.metadata
import numpy as np
import ring_attention as ra

about = importlib.metadata.metadata("ring_attention")
assert about["Version"] == ra.__version__, about["Version"]
assert "MIT" in str(about.get_all("Classifier")) and "numpy" in about.get_all("Requires-Dist")
assert "ring_attention_diagnose" in about.get_all("Requires-Dist")
assert ra.diagnose(lambda q, k, v, case: ra.attention(q, k, v, scale=case.scale), ranks=1, only="full").right
q = np.ones((2, 3, 4))
assert (ra.attention(q, q, q).out == 1).all()
assert (ra.ring_attention(q, q, q, seq=3 * ra.size()).out == 1).all()
if ra.rank() == 0:
    print("ranks:", ra.size())
END
cd "$work"
PYTHONPATH=$work/site "$python" use.py | grep -x 'ranks: 1'
PYTHONPATH=$work/site "$MPIRUN" -n 2 "$python" use.py | grep -x 'ranks: 2'
version=$(sed -n 's/^ *VERSION \([0-9.]*\)$/\1/p' "$RING_ATTENTION_SOURCE/CMakeLists.txt")
ls -d "$work/site/ring_attention-$version.dist-info"
