#!/bin/sh
# Configures the project with launchers that do not fit the MPI library, and with an MPI that will not do, and expects it
# to notice.
#
#     launcher_test.sh CXX_COMPILER       with the environment that tests/CMakeLists.txt gives
#
# Ubuntu 24.04's mpiexec starts N worlds of one rank. A ring of one rank passes every test there is,
# so this must be found before anything is built.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# `mpiexec -n N PROGRAM`, as the broken package does it: N programs that know nothing of each other.
cat >"$work/singletons" <<'END'
#!/bin/sh
[ "$1" = -n ] || exit 0
n=$2
shift 2
while [ "$n" -gt 0 ]; do "$@" & n=$((n - 1)); done
wait
END

# A stand-in for Open MPI's launcher, which fits that package. Like the real one it refuses root and
# more ranks than cores unless it is told.
cat >"$work/mpirun.openmpi" <<END
#!/bin/sh
[ "\$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.6'; exit 0; }
echo "\$UCX_LOG_FILE" >$work/ucx
if [ "\$(id -u)" = 0 ]; then
  [ "\$1" = --allow-run-as-root ] || { echo 'refusing to run as root' >&2; exit 1; }
  shift
fi
[ "\$1" = --oversubscribe ] || { echo 'not enough slots' >&2; exit 1; }
shift
exec "$MPIRUN" "\$@"
END
chmod +x "$work/singletons" "$work/mpirun.openmpi"

configure() { # the name of its log, settings
  log=$work/$1.log
  shift
  cmake -S "$RING_ATTENTION_SOURCE" -B "$work/build" -DCMAKE_CXX_COMPILER="$cxx" -DRING_ATTENTION_CUDA=OFF \
    -DRING_ATTENTION_PROGRAMS=OFF -DRING_ATTENTION_TESTS=OFF "$@" >"$log" 2>&1
}
expect() {
  grep -q -e "$2" "$1" && return
  echo "missing in $1: $2" >&2
  cat "$1" >&2
  exit 1
}
cxx=$1

echo 'a launcher that starts singletons is refused, with a remedy'
if configure refused -DRING_ATTENTION_MPIEXEC="$work/singletons"; then
  echo 'it was accepted' >&2
  exit 1
fi
expect "$work/refused.log" 'started 2 worlds of one rank instead of one world of two'
expect "$work/refused.log" 'Remedy: `sh setup.sh`'
[ ! -e "$work/build/mpirun" ] || { echo 'the launcher was left behind' >&2; exit 1; }

echo "Open MPI's launcher is taken where the MPI's own does not work, also in a folder where one was refused"
configure fallback -DRING_ATTENTION_MPIEXEC= -DMPIEXEC_EXECUTABLE="$work/singletons" \
  -DRING_ATTENTION_OPENMPI_MPIRUN="$work/mpirun.openmpi"
expect "$work/fallback.log" 'MPI ranks are started by .*mpirun.openmpi'
expect "$work/build/mpirun" '--oversubscribe'
"$work/build/mpirun" -n 3 "$work/build/mpi_probe" >"$work/fallback.out"
expect "$work/fallback.out" 'rank 2 of 3'

echo "UCX is told to write to the standard error, unless it has been told something else"
for chosen in '' /tmp/ucx.log; do
  UCX_LOG_FILE=$chosen "$work/build/mpirun" -n 1 "$work/build/mpi_probe" >/dev/null
  expect "$work/ucx" "^${chosen:-stderr}\$"
done

echo 'an MPI without the large counts of MPI 4 is refused, with a remedy'
cat >"$work/mpi_3.h" <<'END'
#if __has_include(<mpi.h>)
#include <mpi.h>
#pragma GCC poison MPI_Bcast_c
#endif
END
rm -r "$work/build"
if configure old_mpi -DCMAKE_CXX_FLAGS="-include $work/mpi_3.h"; then
  echo 'it was accepted' >&2
  exit 1
fi
tr -s ' \n' ' ' <"$work/old_mpi.log" >"$work/old_mpi.line" # CMake breaks the line
expect "$work/old_mpi.line" 'is of an MPI without MPI_Bcast_c, .* Remedy: install MPICH (`sh setup.sh`)'

if command -v mpicxx.mpich >/dev/null; then # as Debian installs it
  echo 'MPICH is taken where another mpicxx is the first in PATH'
  mkdir "$work/openmpi"
  printf '#!/bin/sh\necho "$@" >>%s/openmpi/calls\nexit 1\n' "$work" >"$work/openmpi/mpicxx"
  chmod +x "$work/openmpi/mpicxx"
  rm -r "$work/build"
  PATH=$work/openmpi:$PATH configure both
  expect "$work/both.log" 'MPI ranks are started by'
  expect "$work/build/CMakeCache.txt" '^MPI_CXX_COMPILER:.*/mpicxx.mpich$'
  [ ! -e "$work/openmpi/calls" ] || { echo 'it was asked' >&2; exit 1; }
fi
