#!/bin/sh
# lessons/run_all.sh over stand-ins for the lessons: all pass; one fails; one lies, one ends without a
# verdict, one is missing; one that needs a GPU is skipped, one that does not says so, too.

set -eu

run_all=$RING_ATTENTION_SOURCE/lessons/run_all.sh
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir -p "$folder/lessons/emulated"
printf '#!/bin/sh\nshift 2\nexec "$@"\n' > "$folder/mpirun"
chmod +x "$folder/mpirun"

stand_in() { # lesson, verdict, exit code
  printf '#!/bin/sh\necho "words of %s, $*"\necho "lesson %s %s: %s | error 1.0e-07 | a | b"\nexit %s\n' \
    "$1" "${1%%_*}" "${1#*_}" "$2" "$3" > "$folder/lessons/$1"
  chmod +x "$folder/lessons/$1"
}
for lesson in "$RING_ATTENTION_SOURCE"/lessons/[0-9][0-9]_*; do
  name=$(basename "$lesson")
  for program in "$name" "${name}_cuda" "${name}_nccl"; do # some are no program, and are not run
    stand_in "$program" PASS 0
  done
done

failed=0
emulated=
expect() { # exit code, texts that the output must have
  code=0
  NP=3 sh "$run_all" $emulated "$folder" > "$folder/out" 2>&1 || code=$?
  [ "$code" -eq "$1" ] || { echo "FAIL: exit code $code instead of $1"; failed=1; }
  shift
  for text; do
    grep -q -e "$text" "$folder/out" || { echo "FAIL: no line like: $text"; failed=1; }
  done
  [ "$failed" -eq 0 ] || cat "$folder/out"
}

expect 0 '^  lesson  *what it showed  *error  verdict$' '^  05 blocking_ring  *a | b  *1.0e-07  PASS$' 'All .* lessons passed'
grep -q '^words of 05_blocking_ring, --expect-ranks 3$' "$folder/lessons/output/05_blocking_ring.txt" ||
  { echo 'FAIL: lesson 05 was not told how many ranks it has'; failed=1; }
grep -q '^words of 01_safe_softmax, $' "$folder/lessons/output/01_safe_softmax.txt" ||
  { echo 'FAIL: lesson 01 runs alone'; failed=1; }

for lesson in 03_blockwise_attention_cuda 06_overlapped_ring_nccl 11_tensor_cores; do # one of each kind
  printf '#!/bin/sh\necho "lesson %s %s: SKIPPED | error - | no GPU: why"\n' "${lesson%%_*}" "${lesson#*_}" \
    > "$folder/lessons/$lesson"
done
expect 0 'cuda \.\.\. SKIPPED, no GPU: why$' '^  03 blockwise_attention_cuda  *no GPU: why  *-  SKIPPED$' \
  '^  06 overlapped_ring_nccl  *no GPU: why  *-  SKIPPED$' '^  11 tensor_cores  *no GPU: why  *-  SKIPPED$' \
  'All of .* lessons passed, 3 were skipped' 'make gpu-lessons$'

rm "$folder/lessons/03_blockwise_attention_cuda"
echo '03_blockwise_attention_cuda CUDA' > "$folder/lessons/left_out.txt"
expect 0 '^1 more need a GPU, and this build has no CUDA$' 'lessons passed, 2 were skipped' 'make gpu-lessons$'
! grep -q 03_blockwise_attention_cuda "$folder/out" || { echo 'FAIL: names a lesson that is left out'; failed=1; }
: > "$folder/lessons/left_out.txt"
expect 1 '^  03 blockwise_attention_cuda .* not built.* MISSING$'
stand_in 03_blockwise_attention_cuda PASS 0

stand_in 01_safe_softmax 'SKIPPED' 0
sed -i.old 's/1.0e-07/-/' "$folder/lessons/01_safe_softmax"
expect 1 'FAIL, it needs no GPU and was skipped' '^  01 .* FAIL$'
stand_in 01_safe_softmax PASS 0

stand_in 02_online_softmax FAIL 1
expect 1 '^    words of 02_online_softmax' '^  02 online_softmax .* FAIL$' '^  03 .* PASS$' '^1 of '

stand_in 03_blockwise_attention PASS 3
printf '#!/bin/sh\necho nothing\n' > "$folder/lessons/04_distributed_softmax"
rm "$folder/lessons/05_blocking_ring"
expect 1 '^  03 .* FAIL$' '^  04 .* ended without a verdict .* FAIL$' '^  05 .* not built.* MISSING$' '^4 of '

emulated=--emulated # the GPU lessons alone, from a folder of their own; none may be skipped
expect 1 'not built: run make gpu-lessons' '^6 of 6 lessons did not pass'
for lesson in 03_blockwise_attention_cuda 06_overlapped_ring_nccl 07_backward_cuda 08_ring_backward_nccl \
  10_ulysses_and_hybrid_nccl 11_tensor_cores; do
  stand_in "$lesson" PASS 0
  mv "$folder/lessons/$lesson" "$folder/lessons/emulated/$lesson"
done
expect 0 'All 6 lessons passed'
grep -q '^words of 06_overlapped_ring_nccl, --expect-ranks 3 --share-gpu$' \
  "$folder/lessons/emulated/output/06_overlapped_ring_nccl.txt" || { echo 'FAIL: lesson 06 shares no GPU'; failed=1; }
printf '#!/bin/sh\necho "lesson 11 tensor_cores: SKIPPED | error - | no GPU: why"\n' > "$folder/lessons/emulated/11_tensor_cores"
expect 1 '^  11 tensor_cores .* FAIL$'

[ "$failed" -ne 0 ] || echo 'all as expected'
exit "$failed"
