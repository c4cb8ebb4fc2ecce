#!/bin/sh
# Runs setup.sh against a system made of stand-ins, and looks at what it would do.
set -eu

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"

# The stand-in system: `installed` and `available` list packages, `mpich` holds its version, and
# `calls` gets what apt-get was asked to do.
stand_in() { cat >"$work/bin/$1" && chmod +x "$work/bin/$1"; }
stand_in dpkg-query <<END
#!/bin/sh
case "\$3" in
  *Version*) grep -qx mpich $work/installed && cat $work/mpich ;;
  *) grep -qx -e "\$4" $work/installed && echo installed ;;
esac
END
stand_in apt-cache <<END
#!/bin/sh
case "\$1" in
  show) grep -qx -e "\$3" $work/available ;;
  policy) echo "  Candidate: \$(cat $work/mpich)" ;;
esac
END
stand_in apt-get <<END
#!/bin/sh
echo "apt-get \$*" >>$work/calls
[ ! -e $work/no-network ] && [ ! -e $work/no-package -o "\$1" != install ]
END
stand_in id <<END
#!/bin/sh
cat $work/user
END
stand_in sudo <<END
#!/bin/sh
echo "sudo" >>$work/calls
exec "\$@"
END
# Nothing but the stand-ins and what a bare system has; no make, cmake or c++.
for tool in sh cat grep cut tr awk sed printf env; do ln -s "$(command -v $tool)" "$work/bin/$tool"; done

all='make cmake g++ libmpich-dev mpich libeigen3-dev libcli11-dev nlohmann-json3-dev libgtest-dev python3 python3-numpy python3-pytest python3-dev pybind11-dev'
reset() {
  rm -f "$work/calls" "$work/no-network" "$work/no-package"
  echo 0 >"$work/user"
  echo 4.0.2-3 >"$work/mpich"
  # shellcheck disable=SC2086 # one word a package
  printf '%s\n' $all >"$work/installed"
  # shellcheck disable=SC2086 # one word a package
  printf '%s\n' $all doxygen clang-19 clang-16 openmpi-bin python3-pip >"$work/available"
}
setup() { PATH="$work/bin" sh "$RING_ATTENTION_SOURCE/setup.sh" "$@" >"$work/output" 2>&1; }
fail() {
  echo "FAILED: $*" >&2
  cat "$work/output" "$work/calls" >&2 || true
  exit 1
}
asked_for() { grep -q -e "apt-get install .* $1 *\( .*\)\{0,1\}$" "$work/calls"; }

echo 'nothing missing: nothing is called'
reset
setup || fail 'exit code'
[ ! -e "$work/calls" ] || fail 'apt-get was called'

echo 'a bare machine: everything is installed, with reasons'
reset
: >"$work/installed"
setup run test || fail 'exit code'
for package in $all; do asked_for "$package" || fail "$package was not asked for"; done
grep -q 'mpich  *starts the ranks' "$work/output" || fail 'no reason given'
! asked_for openmpi-bin || fail 'openmpi-bin is not wanted here'

echo 'an ordinary user: through sudo'
reset
echo 1000 >"$work/user"
: >"$work/installed"
setup run || fail 'exit code'
grep -qx sudo "$work/calls" || fail 'no sudo'

echo 'no sudo: says what is missing'
mv "$work/bin/sudo" "$work/no-sudo"
rm "$work/calls"
if setup run; then fail 'exit code'; fi
mv "$work/no-sudo" "$work/bin/sudo"
grep -q 'needs root or sudo:.* cmake ' "$work/output" || fail 'no list'
[ ! -e "$work/calls" ] || fail 'apt-get was called'

echo 'no network: says so'
reset
: >"$work/installed"
touch "$work/no-network"
if setup run; then fail 'exit code'; fi
grep -q 'Is there a network?' "$work/output" || fail 'no hint'

echo 'a package that is in no source: says where it may be'
reset
sed -i /libcli11-dev/d "$work/installed" "$work/available"
touch "$work/no-package"
if setup run; then fail 'exit code'; fi
grep -q 'is the component universe among the sources.*Still missing: libcli11-dev' "$work/output" || fail 'no hint'

echo 'the mpich of Ubuntu 24.04: a launcher that works comes with it, once'
reset
echo 4.2.0-5build3 >"$work/mpich"
setup run || fail 'exit code'
asked_for openmpi-bin || fail 'openmpi-bin was not asked for'
grep -q 'openmpi-bin  *a launcher that works' "$work/output" || fail 'no reason given'
echo openmpi-bin >>"$work/installed"
rm "$work/calls"
setup run || fail 'exit code'
[ ! -e "$work/calls" ] || fail 'apt-get was called again'
reset
echo 4.2.0-5build3.1 >"$work/mpich"
setup run || fail 'exit code'
[ ! -e "$work/calls" ] || fail 'a repaired package needs no other launcher'

echo 'packages that this system does not have: the optional are left out, the next best is taken'
reset
setup docs sanitize || fail 'exit code'
asked_for doxygen || fail 'doxygen was not asked for'
asked_for clang-16 || fail 'clang-16 was not asked for'
rm "$work/calls"
sed -i /clang-16/d "$work/available"
setup docs sanitize || fail 'exit code'
asked_for clang-19 || fail 'clang-19 was not asked for'
! grep -q awesome "$work/calls" || fail 'an unknown package was asked for'

# A copy in a folder of its own, which finds no headers of the system.
mkdir "$work/copy"
sed -e 's|/usr/local|/none|g' -e 's| /usr;| /none;|' "$RING_ATTENTION_SOURCE/setup.sh" >"$work/copy/setup.sh"
copied_setup() { PATH="$work/bin" CUDA_PATH='' CUDA_HOME='' NCCL_ROOT='' NCCL_HOME='' sh "$work/copy/setup.sh" "$@" >"$work/output" 2>&1; }
for tool in mkdir rm; do ln -s "$(command -v $tool)" "$work/bin/$tool"; done

echo 'the headers of CUDA and NCCL: pip loads them, once; their libraries are not kept'
reset
stand_in pip3 <<END
#!/bin/sh
echo "pip3 \$*" >>$work/calls
[ ! -e $work/no-network ] || exit 1
while [ "\$1" != --target ]; do shift; done
case "\$*" in
  *clang-format==19.*) mkdir -p "\$2/bin" && : >"\$2/bin/clang-format" ;;
  *nccl*) mkdir -p "\$2/nvidia/nccl/include" "\$2/nvidia/nccl/lib" && : >"\$2/nvidia/nccl/include/nccl.h" ;;
  *) mkdir -p "\$2/nvidia/cu13/include/crt" && : >"\$2/nvidia/cu13/include/crt/host_defines.h" ;;
esac
END
touch "$work/no-network"
if copied_setup gpu-headers; then fail 'exit code'; fi
grep -q '^setup: pip did not load nvidia-cuda-runtime.* Is there a network?' "$work/output" || fail 'no hint'
rm "$work/no-network" "$work/calls"
copied_setup gpu-headers || fail 'exit code'
[ "$(grep -c '^pip3 install ' "$work/calls")" = 2 ] || fail 'pip was not called twice'
[ ! -e "$work/copy/build/gpu-headers/nccl/nvidia/nccl/lib" ] || fail 'a library was kept'
rm "$work/calls"
copied_setup gpu-headers || fail 'exit code'
[ ! -e "$work/calls" ] || fail 'pip was called again'

echo 'a system without clang-format 19: pip loads it, once'
copied_setup format || fail 'exit code'
asked_for python3-pip || fail 'python3-pip was not asked for'
[ "$(grep -c '^pip3 install ' "$work/calls")" = 1 ] || fail 'pip was not called once'
echo python3-pip >>"$work/installed"
rm "$work/calls"
copied_setup format || fail 'exit code'
[ ! -e "$work/calls" ] || fail 'it was loaded again'
rm -r "$work/copy/build"
echo clang-format-19 >>"$work/available"
copied_setup format || fail 'exit code'
asked_for clang-format-19 || fail 'the package of that name was not asked for'

echo 'an unknown part is refused'
if setup everything; then fail 'exit code'; fi
