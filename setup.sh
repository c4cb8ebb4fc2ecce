#!/bin/sh
# Installs what this project needs and this machine lacks.
#
#     sh setup.sh [run] [test] [diagnose] [python] [docs] [browser] [notebooks] [format] [lint] [sanitize] [bench] [gpu-headers] [live]
#
# Without a part: run test.
#
# Through apt (as root or with sudo) or Homebrew. It says what it installs and why. When nothing is
# lacking it changes nothing, asks for no password and needs no network.
# The Makefile calls it; `make SETUP=true ...` leaves it out.

set -eu

# `?` after a package: wanted only where the system has it. `a/b`: the first that the system has.
# The command column: a command that will do as well, however it was installed.
#
#       apt package                    formula          command          why
packages='
run       make                         -                make             drives the build
run       cmake                        cmake            cmake            configures the build
run       g++                          -                c++              compiles C++20
run       libmpich-dev                 mpich            -                MPI, by which the ranks send messages
run       mpich                        mpich            -                starts the ranks
run       libeigen3-dev                eigen            -                matrices, for the reference and the tiles
run       libcli11-dev                 cli11            -                reads the command line
run       nlohmann-json3-dev           nlohmann-json    -                writes reports as JSON
test      libgtest-dev                 googletest       -                GoogleTest, the test framework
test      python3                      python3          python3          runs the tests of the command line
test      python3-numpy                numpy            -                NumPy, for diagnose, the capstone and the module of Python
test      python3-pytest               pytest           -                pytest, for the tests of the command line
test      python3-dev                  python3          -                the headers of Python, for the Python module
test      pybind11-dev                 pybind11         -                pybind11, which makes the module of C++ code
test      iproute2?                    -                ip               makes two hosts of one, for a test that cuts their link
test      spin?                        spin             spin             checks the models of the schedules
diagnose  python3                      python3          python3          names the mistakes of a ring
diagnose  python3-numpy                numpy            -                NumPy, its arrays
python    python3-dev                  python3          -                the headers of Python, for the Python module
python    pybind11-dev                 pybind11         -                pybind11, which makes the module of C++ code
python    python3-numpy                numpy            -                NumPy, the arrays of the module
docs      python3                      python3          python3          prepares the pages for Doxygen, and checks them
docs      doxygen                      doxygen          doxygen          makes the documentation site
docs      doxygen-awesome-css?         -                -                its looks
docs      libjs-mathjax?               -                -                its formulas, without a network
browser   chromium?                    -                -                tries the player of the documentation
notebooks python3                      python3          python3          runs the notebooks
notebooks python3-numpy                numpy            -                their arrays
notebooks python3-matplotlib           python-matplotlib -               their pictures
format    clang-format-19/python3-pip  python3          clang-format-19  formats the source
lint      clang-format-19/python3-pip  python3          clang-format-19  formats the source
lint      clang-tidy-19/python3-pip    python3          clang-tidy-19    looks for mistakes in the source
lint      cmake-format?                -                cmake-lint       looks for mistakes in the CMake files
lint      flake8                       flake8           flake8           looks for mistakes in the Python files
lint      shellcheck                   shellcheck       shellcheck       looks for mistakes in the shell scripts
lint      python3                      python3          python3          starts clang-tidy for several files at once
sanitize  clang-16/clang-19?           -                clang++-16       compiles for the sanitizers, in less time than g++
sanitize  libclang-rt-16-dev/libclang-rt-19-dev? -      -                the sanitizers of clang
gpu-headers python3                    python3          python3          runs pip
gpu-headers python3-pip                python3          pip3             loads the headers of CUDA and NCCL
bench     libbenchmark-dev             google-benchmark -                Google Benchmark, takes the times
bench     libopenblas-dev?             openblas         -                OpenBLAS, whose sgemm the kernels are measured against
bench     libdnnl-dev?                 onednn           -                oneDNN, a peer of the kernels
bench     python3                      python3          python3          runs the benchmarks
live      make                         -                make             drives the build
live      cmake                        cmake            cmake            configures the build
live      libeigen3-dev                eigen            -                matrices, for the reference
live      libcli11-dev                 cli11            -                reads the flags of the lessons
live      nlohmann-json3-dev           nlohmann-json    -                writes reports of the lessons as JSON
live      python3                      python3          python3          packs the module
live      python3-pip                  python3          pip3             loads the compiler
'

say() { printf 'setup: %s\n' "$*"; }
fail() {
  printf 'setup: %s\n' "$*" >&2
  exit 1
}

# Both take lines of "package why".
names_of() { printf '%s\n' "$1" | cut -d' ' -f1 | tr '\n' ' '; }
announce() {
  say 'installing:'
  printf '%s\n' "$1" | while read -r name why; do printf '  %-22s %s\n' "$name" "$why"; done
}

# --- apt -----------------------------------------------------------------------------------------

apt_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

apt_available() { apt-cache show --no-all-versions "$1" >/dev/null 2>&1; }

# Ubuntu 24.04's mpich 4.2.0-5build3 starts N worlds of one rank each (Launchpad bug
# 2072338). It speaks PMIx, so Open MPI's launcher can start its programs; CMake tries that. A repaired package would be
# 4.2.0-5build3.1.
apt_mpich_is_broken() {
  version=$(dpkg-query -W -f '${Version}' mpich 2>/dev/null) || version=
  [ -n "$version" ] || version=$(apt-cache policy mpich 2>/dev/null | sed -n 's/^ *Candidate: //p')
  case $version in 4.2.0-5build[0-9]) return 0 ;; *) return 1 ;; esac
}

# Prints the missing packages, one "package why" a line.
apt_missing() {
  for group in $groups; do
    printf '%s\n' "$packages" | while read -r of names _ command why; do
      [ "$of" = "$group" ] || continue
      if [ "$command" != - ] && command -v "$command" >/dev/null; then continue; fi
      optional=
      case $names in *\?) optional=yes names=${names%\?} ;; esac
      choice=
      for name in $(printf '%s' "$names" | tr / ' '); do
        if apt_installed "$name"; then continue 2; fi
        if apt_available "$name"; then choice=$name && break; fi
      done
      if [ -z "$choice" ] && [ -n "$optional" ]; then continue; fi
      printf '%s %s\n' "${choice:-${names%%/*}}" "$why"
    done
    if [ "$group" = run ] && apt_mpich_is_broken && ! apt_installed openmpi-bin; then
      echo "openmpi-bin a launcher that works: the one in this system's mpich starts every rank alone"
    fi
  done | awk '!seen[$1]++'
}

apt_setup() {
  [ -n "$(apt_missing)" ] || return 0

  as_root=
  if [ "$(id -u)" -ne 0 ]; then
    as_root=sudo
    command -v sudo >/dev/null ||
      fail "installing these missing packages needs root or sudo: $(names_of "$(apt_missing)")"
  fi
  say 'some packages are missing; asking the system which versions it has (apt-get update)'
  $as_root apt-get update -qq || fail 'apt-get update failed. Is there a network?'

  missing=$(apt_missing)
  announce "$missing"
  names=$(names_of "$missing")
  # shellcheck disable=SC2086 # names are words
  $as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 $names >/dev/null ||
    fail "apt-get install failed. Is there a network, and, on Ubuntu, is the component universe among the sources" \
      "(sudo add-apt-repository universe)? Still missing: $names"
}

# --- Homebrew ------------------------------------------------------------------------------------

brew_missing() {
  for group in $groups; do
    printf '%s\n' "$packages" | while read -r of _ name command why; do
      if [ "$of" != "$group" ] || [ "$name" = - ]; then continue; fi
      if [ "$command" != - ] && command -v "$command" >/dev/null; then continue; fi
      brew list --versions "$name" >/dev/null 2>&1 || printf '%s %s\n' "$name" "$why"
    done
  done | awk '!seen[$1]++'
}

brew_setup() {
  command -v c++ >/dev/null || fail 'no C++ compiler. Remedy: xcode-select --install'
  missing=$(brew_missing)
  [ -n "$missing" ] || return 0
  announce "$missing"
  names=$(names_of "$missing")
  case " $names" in
    *' mpich '*)
      if brew list --versions open-mpi >/dev/null 2>&1; then
        say 'taking Open MPI out of the way of MPICH (brew unlink open-mpi; brew link open-mpi undoes it)'
        brew unlink open-mpi
      fi
      ;;
  esac
  # shellcheck disable=SC2086 # names are words
  brew install $names || fail 'brew install failed. Is there a network?'
}

# --- what pip loads into build/ --------------------------------------------------------------------

case $0 in */*) build=${0%/*}/build ;; *) build=build ;; esac

load_wheels() { # folder, what to do without a network, wheels
  into=$build/$1 remedy=$2
  shift 2
  rm -rf "$into"
  mkdir -p "$into"
  PIP_ROOT_USER_ACTION=ignore pip3 install --quiet --disable-pip-version-check --retries 1 --no-deps --no-compile \
    --only-binary=:all: --target "$into" "$@" 2>"$build/pip.log" ||
    fail "pip did not load $* (see build/pip.log). Is there a network? $remedy"
}

# One version of both for all, where the system has none of the name: what others write differs.
# The Makefile looks for them here.
llvm_tools_setup() { # clang-format, clang-tidy
  for tool in "$@"; do
    if command -v "$tool-19" >/dev/null || [ -e "$build/llvm/$tool/bin/$tool" ]; then continue; fi
    say "loading $tool 19 into build/llvm, since this system has no $tool-19"
    load_wheels "llvm/$tool" 'CLANG_FORMAT and CLANG_TIDY name programs of your own.' "$tool==19.*"
  done
}

# The headers of CUDA and NCCL, which NVIDIA's wheels have. Those for Linux will do everywhere: only the headers are kept.
header_folder=$build/gpu-headers
wheels_for='--platform=manylinux_2_18_x86_64 --platform=manylinux2014_x86_64'
cuda_wheels='nvidia-cuda-runtime==13.0.* nvidia-cuda-crt==13.0.* nvidia-cuda-cccl==13.0.*'
nccl_wheel='nvidia-nccl-cu13==2.28.*'

# Is the header in one of the folders, or where CMake looks for CUDA?
has_header() {
  header=$1
  shift
  for folder in "$@" "${CUDA_PATH:-}" "${CUDA_HOME:-}" /usr/local/cuda; do
    [ ! -f "$folder/include/$header" ] || return 0
  done
  return 1
}
has_cuda_headers() { has_header crt/host_defines.h "$header_folder/cuda/nvidia/cu13"; }
has_nccl_header() { has_header nccl.h "$header_folder/nccl/nvidia/nccl" "${NCCL_ROOT:-}" \
  "${NCCL_HOME:-}" /usr/local /usr; }

load_headers() { # folder, wheels
  # shellcheck disable=SC2086 # options and wheels are words
  load_wheels "gpu-headers/$1" 'CUDA_PATH and NCCL_ROOT name folders that have the headers.' $2 $wheels_for
  rm -rf "$header_folder/$1"/nvidia/*/lib
}

gpu_headers_setup() {
  say 'loading the headers of CUDA (6 MB) and of NCCL (200 MB, of which 0.1 MB are kept) into build/gpu-headers'
  has_cuda_headers || load_headers cuda "$cuda_wheels"
  has_nccl_header || load_headers nccl "$nccl_wheel"
}

# For WebAssembly: no package of Debian has LLVM's C++ library with exceptions for it, and this wheel has the sources.
live_setup() {
  [ ! -x "$build/zig/ziglang/zig" ] || return 0
  say 'loading clang for WebAssembly (100 MB, 410 MB on the disk) into build/zig'
  load_wheels zig '' ziglang==0.17.1
}

# --- which ---------------------------------------------------------------------------------------

parts='run test diagnose python docs browser notebooks format lint sanitize bench gpu-headers live'
groups=
# shellcheck disable=SC2048 # parts are words
for group in ${*:-run test}; do
  case " $parts " in
    *" $group "*) ;;
    *) fail "unknown part '$group'. Usage: sh setup.sh [PART...], of $parts" ;;
  esac
  if [ "$group" = gpu-headers ] && has_cuda_headers && has_nccl_header; then continue; fi
  groups="$groups $group"
done

if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
  apt_setup
elif command -v brew >/dev/null; then
  brew_setup
else
  say 'this system has neither apt nor Homebrew. Please install by hand what is missing of:'
  for group in $groups; do
    printf '%s\n' "$packages" | sed -n "s/^$group  *\([^ ]*\)  *[^ ]*  *[^ ]*  */  \1: /p"
  done
fi
case $groups in *format*) llvm_tools_setup clang-format ;; esac
case $groups in *lint*) llvm_tools_setup clang-format clang-tidy ;; esac
case $groups in *gpu-headers*) gpu_headers_setup ;; esac
case $groups in *live*) live_setup ;; esac
