#!/bin/sh
# `make` in a build folder that was copied with its checkout, or that another user made, says what to do; in others it
# calls CMake.
set -eu

target=python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$RING_ATTENTION_SOURCE/Makefile" "$work"
mkdir -p "$work/build/release" "$work/bin"
printf '#!/bin/sh\necho "cmake was called"\nexit 1\n' >"$work/bin/cmake"
chmod 755 "$work" "$work/bin/cmake"
cd "$work"

expect() { # what `make` says, the command that makes
  text=$1
  shift
  if PATH="$work/bin:$PATH" "$@" make SETUP=true "$target" >"$work/log" 2>&1; then
    echo 'make: exit code 0' >&2
    exit 1
  fi
  grep -q -e "$text" "$work/log" || { cat "$work/log" >&2; exit 1; }
}
made_for() { echo "CMAKE_HOME_DIRECTORY:INTERNAL=$1" >build/release/CMakeCache.txt; }

echo 'NumPy is set up for what names mistakes'
for word in capstone exercise-05; do
  make -n SETUP=setup "$word" | grep -q '^setup .*diagnose' || { echo "make $word does not set it up" >&2; exit 1; }
done

echo 'a checkout of its own'
expect '^cmake was called'
made_for "$work"
expect '^cmake was called' env

echo 'an unpacked archive has no commit to make an archive of'
target=dist
expect '^make: an archive is made of a commit, and this folder is no git checkout$'
target=python

echo 'a copied one'
made_for "$RING_ATTENTION_SOURCE"
expect '^make: build/release was made for a checkout in another folder. Remedy: `make clean`$' env

echo "another user's"
made_for "$work"
chmod -R a-w build
set -- env
if [ "$(id -u)" = 0 ]; then # who may write everywhere
  command -v setpriv >/dev/null || exit 0
  set -- setpriv --reuid 65534 --regid 65534 --clear-groups
fi
expect "^make: build is another user's. Remedy: \`make clean\` as that user\$" "$@"
chmod -R u+w build

echo 'a checkout that cannot be written'
rm -r build
chmod a-w .
expect '^make: this folder cannot be written. Remedy: copy it' "$@"
chmod u+w .
