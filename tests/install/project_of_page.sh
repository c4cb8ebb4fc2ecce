#!/bin/sh
# Makes the project that docs/cpp.md shows: `project_of_page.sh WORD FOLDER`, of the block for CMake that has the word.
set -eu

mkdir -p "$2"
awk -v word="$1" '/^```cmake$/ { block = ""; inside = 1; next }
     /^```$/ { if (inside && index(block, word)) printf "%s", block; inside = 0 }
     inside { block = block $0 "\n" }' "$RING_ATTENTION_SOURCE/docs/cpp.md" >"$2/CMakeLists.txt"
cp "$RING_ATTENTION_SOURCE/tests/install/own_program.cpp" "$2/my_program.cpp"
