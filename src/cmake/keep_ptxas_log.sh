#!/bin/sh
# keep_ptxas_log.sh NVCC ARGUMENT...   Runs the compiler and stores its output, with ptxas' lines on each kernel, in
# OBJECT.ptxas. Prints the other lines: warnings and errors.
object=
previous=
for argument in "$@"; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
log=$object.ptxas
"$@" >"$log" 2>&1
status=$?
grep -v -e '^ptxas info' -e '^ *[0-9]* bytes stack frame' -e '^ *Function properties' "$log" >&2
exit $status
