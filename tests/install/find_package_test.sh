#!/bin/sh
# Installs the build into a prefix of its own, builds another project against it with
# find_package(ring_attention), and runs that project's programs alone and on three ranks.
#
#     find_package_test.sh CXX_COMPILER [CXX_FLAGS]      with the environment that tests/CMakeLists.txt gives
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$RING_ATTENTION_BUILD" --prefix "$work/prefix" >"$work/install.log"

# Nothing installed may point back to where it was built.
if grep -rlF -e "$RING_ATTENTION_SOURCE" -e "$RING_ATTENTION_BUILD" "$work/prefix/lib"*/cmake; then
  echo "these installed files name the build or source folder" >&2
  exit 1
fi

# `diagnose` is started from where it was installed, or says in one line what is missing.
if [ -x "$work/prefix/bin/ring-attention" ]; then
  ls "$work/prefix/share/ring_attention/ring_attention_diagnose/mistakes.tsv"
  code=0
  (cd "$work" && prefix/bin/ring-attention diagnose cases --only full --out cases) >"$work/cases.log" 2>&1 || code=$?
  case $code in
  0) ls "$work/cases/full/q.npy" ;;
  2) grep -x 'error: diagnose: no python3 has NumPy: .*' "$work/cases.log" ;;
  *) cat "$work/cases.log" >&2 && exit 1 ;;
  esac
  mv "$work/prefix/share/ring_attention" "$work/away"
  ! "$work/prefix/bin/ring-attention" diagnose cases 2>"$work/cases.log" || exit 1
  grep -x 'error: .*/share/ring_attention/ring_attention_diagnose: is not there: .*' "$work/cases.log"
fi

cmp "$RING_ATTENTION_SOURCE/LICENSE" "$(find "$work/prefix" -name LICENSE)"

# Headers: those that the programs here include, those that an installed header includes, and no other.
programs=$(ls "$RING_ATTENTION_SOURCE"/tests/install/*.cpp)
has_cuda=$(find "$work/prefix" -name libring_attention_cuda.a)
[ -n "$has_cuda" ] || programs=$(echo "$programs" | grep -v cuda)
(cd "$work/prefix/include" && find ring_attention -type f) | sort >"$work/installed"
# shellcheck disable=SC2046,SC2086 # names of files
(cd "$work/prefix/include" && sed -n 's/^#include "\(ring_attention[^"]*\)".*/\1/p' $programs $(cat "$work/installed")) |
  sort -u | diff - "$work/installed" || { echo 'above: < included and not installed, > installed and not included' >&2; exit 1; }
if grep -e '/model/' -e '/plan/' "$work/installed"; then
  echo 'these headers are above the library' >&2
  exit 1
fi

build() { # the folder of a project, where to build it, its flags
  cmake -S "$1" -B "$2" -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_CXX_FLAGS="$3"
  cmake --build "$2"
}
cxx=$1
warnings='-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Werror'
build "$RING_ATTENTION_SOURCE/tests/install" "$work/build" "${2-}"
sh "$RING_ATTENTION_SOURCE/tests/install/project_of_page.sh" find_package "$work/page"
build "$work/page" "$work/page/build" "${2-} $warnings"

"$work/build/consumer" 1
if [ -n "$has_cuda" ]; then
  "$work/build/cuda_consumer"
fi
"$MPIRUN" -n 3 "$work/build/consumer" 3

# The lines of the README are lines of these programs, in the same order; and what the first one prints, in the project
# that docs/cpp.md shows. The emulator runs the second one (tests/cuda).
awk '/^```cpp$/ { block = ""; inside = 1; next }
     /^```$/ { if (inside && block ~ /ring_attention\/ring_attention\.hpp/) printf "%s", block; inside = 0 }
     inside { block = block $0 "\n" }' "$RING_ATTENTION_SOURCE/README.md" >"$work/readme"
[ "$(wc -l <"$work/readme")" -ge 8 ] || { echo 'the README has no lines for an MPI program' >&2; exit 1; }
(cat "$RING_ATTENTION_SOURCE/tests/install/own_program.cpp"
sed -n '/ra::GpuAttention gpu/,$p' "$RING_ATTENTION_SOURCE/tests/install/own_gpu_program.cpp") |
  sed 's/^ *//' | grep -Fx -f "$work/readme" | diff "$work/readme" -
"$MPIRUN" -n 3 "$work/page/build/my_program" | sort >"$work/printed"
cat "$work/printed"
[ "$(cut -d, -f1 "$work/printed" | tr '\n' ' ')" = \
  "rank 0: out 1 rank 1: out 1 rank 2: out 1 " ]

# The same program without CMake.
if command -v pkg-config >/dev/null && pkg-config --exists eigen3; then
  PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name ring_attention.pc)")
  export PKG_CONFIG_PATH
  grep -q '^c++ -std=c++20 .*$(pkg-config --cflags --libs ring_attention)$' "$RING_ATTENTION_SOURCE/docs/cpp.md"
  # shellcheck disable=SC2046,SC2086 # flags are words
  "$1" ${2-} -std=c++20 $warnings \
    "$RING_ATTENTION_SOURCE/tests/install/own_program.cpp" -o "$work/own_program" \
    $(pkg-config --cflags --libs ring_attention)
  "$MPIRUN" -n 3 "$work/own_program" | sort | diff "$work/printed" -
  grep -q "^  VERSION $(pkg-config --modversion ring_attention)\$" "$RING_ATTENTION_SOURCE/CMakeLists.txt"
else
  echo 'not tried: pkg-config, or its file of Eigen, is not here'
fi

[ "$("$MPIRUN" --version)" = "$("$(cat "$work/build/mpiexec.txt")" --version)" ] || {
  echo "the package names another launcher than the build uses" >&2
  exit 1
}
if "$MPIRUN" -n 2 "$work/build/consumer" 3 2>/dev/null; then
  echo "two ranks passed where three were promised" >&2
  exit 1
fi
