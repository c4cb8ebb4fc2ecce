#!/bin/sh
# The judge of an exercise. `make exercise-05` calls it.
#
#     sh lessons/exercise.sh 05 [BUILD FOLDER] [FOLDER OF YOUR COPIES]      (default: build/release, exercises)
#
# An exercise is the header with the lesson's idea, with holes in the place of the lines that
# lessons/05_.../exercise.txt quotes. You fill in the holes of a copy, exercises/05_....hpp, which git ignores. The
# lesson's program is compiled with your copy in the place of the idea, and runs all its checks. LIMIT=60 gives it 60
# seconds instead of 30.
#
# The exercises 11a to 11e are kernels, lessons/11_.../exercises/a_....cu, whose holes a_....txt next to it lists. The
# emulator runs your copy (emulator/README.md).

set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
number=${1:-}
build=${2:-$root/build/release}
copies=${3:-$root/exercises}
case $number in
  [0-9][0-9][a-z]) holes=$(echo "$root"/lessons/"${number%?}"_*/exercises/"${number#??}"_*.txt) ;;
  *) holes=$(echo "$root"/lessons/"${number:-none}"_*/exercise.txt) ;;
esac
if [ ! -f "$holes" ]; then
  echo "error: there is no exercise '$number'. There are:" \
    "$(echo "$root"/lessons/*_*/exercise.txt | sed 's|[^ ]*/\([0-9]*\)_[^/]*/exercise.txt|\1|g')" \
    "$(echo "$root"/lessons/*_*/exercises/*.txt | sed 's|[^ ]*/\([0-9]*\)_[^/]*/exercises/\([a-z]\)_[^ ]*|\1\2|g')" >&2
  exit 2
fi
folder=$(dirname "$holes")
case $number in
  *[a-z])
    lesson=${number%?}$(basename "$holes" .txt)
    kind=cu
    idea=${holes%.txt}.cu
    ;;
  *)
    lesson=$(basename "$folder")
    kind=hpp
    idea=$folder/$(sed -n "s/^add_lesson($lesson IDEA \([a-z_.]*\).*/\1/p" "$root/lessons/CMakeLists.txt")
    ;;
esac
output=$build/exercises/$lesson.txt

end() { # exit code, words
  code=$1
  shift
  echo "exercise $number: $*"
  exit "$code"
}

# Shows which mistake the program named; of 05 on, has the mistake in the arrays of a small problem named, where a Python
# has NumPy.
name_mistake() {
  sed -n "s/^  mistake  /exercise $number: /p" "$output"
  case $number in
    05 | 06 | 08) small='--seq 24 --dim 16' ;;
    07) small='--seq 24 --dim 16 --block 8' ;;
    10) small='--seq 32 --dim 16 --heads 4' ;;
    12) small='--seq 24' ;;
    *) return 0 ;;
  esac
  arrays=$build/exercises/$lesson.arrays
  rm -rf "$arrays"
  # shellcheck disable=SC2086 # several words
  MPIEXEC_TIMEOUT=$limit "$build/mpirun" -n "$ranks" \
    "$build/exercises/$lesson" $arguments $small --save "$arrays" > /dev/null 2>&1 < /dev/null || true
  for python in python3 /usr/bin/python3; do
    "$python" -c 'import numpy' 2> /dev/null || continue
    said=$("$python" "$root/lessons/name_mistake.py" "$arrays" 2> /dev/null || true)
    [ -z "$said" ] || echo "exercise $number: $said"
    return 0
  done
}

copy=$copies/$lesson.$kind
if [ ! -f "$copy" ]; then
  mkdir -p "$copies"
  if ! awk -f "$root/lessons/with_holes.awk" "$holes" "$idea" > "$copy"; then
    rm "$copy"
    echo "error: $idea does not have the lines that $holes quotes. Remedy: undo your changes of $idea" >&2
    exit 2
  fi
  echo "exercise $number: your copy is ${copy#"$root"/}. Fill in its holes, then give the same command again."
fi

# The header that the program includes says where the copy is, so that errors of the compiler say it, too.
mkdir -p "$build/exercises"
printf '#include "common/hole.hpp"\n#include "%s"\n' "$(cd "$copies" && pwd)/$lesson.$kind" > "$output"
cmp -s "$output" "$build/exercises/$lesson.hpp" || cp "$output" "$build/exercises/$lesson.hpp"
library=src/libring_attention
time=minutes
if [ $kind = cu ]; then library=lessons/emulator/libcuda_emulator; fi
if grep -q "^add_lesson($lesson .*READABLE" "$root/lessons/CMakeLists.txt"; then
  library=src/libring_attention_readable
  time='half a minute'
fi
[ -n "$(find "$build/$library".* 2> /dev/null)" ] ||
  echo "exercise $number: the library is compiled first; this takes $time."
jobs=$(getconf _NPROCESSORS_ONLN 2> /dev/null || echo 2)
if ! cmake --build "$build" --parallel "$jobs" --target "exercise_$number" > "$output" 2>&1; then
  grep -v '^\[\|^gmake\|^make\|^ninja' "$output" || true
  end 1 'it does not compile; see above'
fi

ranks=1
arguments=
if [ $kind = hpp ] && grep -q 'mpi_main(' "$folder/main.cpp"; then
  ranks=4
  arguments='--expect-ranks 4'
fi
limit=${LIMIT:-30}
begin=$(date +%s)
code=0
# shellcheck disable=SC2086 # several words
MPIEXEC_TIMEOUT=$limit "$build/mpirun" -n "$ranks" "$build/exercises/$lesson" $arguments > "$output" 2>&1 < /dev/null || code=$?
seconds=$(($(date +%s) - begin))

empty=
if grep -q '^`.*` is still empty$' "$output"; then # it ended at one of them: all are named
  empty=$(sed -n 's/^ *still_empty("\(.*\)");.*/`\1`/p' "$copy" |
    awk '{ all = all (NR > 1 ? ", " : "") $0 } END { print all }')
  case $empty in *', `'*) empty="$empty are still empty" ;; *) empty="$empty is still empty" ;; esac
fi
verdict=$(grep "^lesson $number [a-z0-9_]*: [A-Z]* | " "$output" | tail -n 1)
[ -z "$empty" ] || end 1 "$empty"
case $code$verdict in
  0*': PASS | '*) end 0 "${verdict#*: }" ;;
  *': FAIL | '*)
    grep -E '^  (FAIL|threads?) ' "$output" || true
    name_mistake
    end 1 "FAIL | what it printed: $output"
    ;;
esac
if [ "$seconds" -ge "$limit" ]; then
  more="(a slow machine? LIMIT=$((4 * limit)) make exercise-$number)"
  [ "$ranks" -eq 1 ] || end 1 "no end after $limit s: a deadlock, a rank waits for a message that does not come $more"
  end 1 "no end after $limit s $more"
fi
tail -n 20 "$output"
reported=$(sed -n 's/^\(\[rank [0-9]*\] \)\{0,1\}error: /\1/p' "$output" | head -n 1)
end 1 "ended without a verdict: ${reported:-exit code $code}; see above"
