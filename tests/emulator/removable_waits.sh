#!/bin/sh
# Prints a copy of a C++ file in which the emulator can leave out each wait: removable_waits.sh FILE WAITS. WAITS is a
# regular expression of sed for the beginning of a statement that waits.
set -eu
file=$1 waits=$2
text=$(sed -zE "s/\n( *)($waits)/\n\1if (!::ring_attention::emulator::ignored(std::source_location::current())) \2/g" "$file")
[ "$text" != "$(cat "$file")" ] || { echo "removable_waits.sh: $file has no statement that begins with $waits" >&2; exit 1; }
printf '#include "emulator/machine.hpp"\n#line 1 "%s"\n%s\n' "$file" "$text"
