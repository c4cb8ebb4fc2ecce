"""The ideas of the lessons: they stand alone, they are short, and pairs and mutants differ by few lines.

- An idea (IDEA in lessons/CMakeLists.txt) has few lines of code, and includes nothing of lessons/common.
- Lesson 06's ring differs from lesson 05's by at most 40 lines of `diff`.
- A mutant differs from its idea by at most three lines.
- Outside its holes an exercise is its idea, line by line.
- A kernel of an exercise has 40 to 120 lines, and holes; each has a name and lines for the reader to write.
- The one file of lesson 00 has at most 100 lines, and includes MPI, Eigen and the standard library only.
"""

import difflib
import os
import re
import sys
from pathlib import Path

LESSONS = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2])) / "lessons"
CODE_LINES = 75  # about 60 are meant

failures = 0


def expect(holds, what):
    global failures
    print(f"{'ok  ' if holds else 'FAIL'} {what}")
    failures += not holds


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def changed(one, other):
    """The lines of `diff one other` that begin with < and those that begin with >."""
    diff = [line[0] for line in difflib.ndiff(lines(one), lines(other))]
    return diff.count("-"), diff.count("+")


def ideas():
    """The file of each idea, from add_lesson and add_gpu_lesson."""
    text = (LESSONS / "CMakeLists.txt").read_text(encoding="utf-8")
    for lesson, words in re.findall(r"^add_(?:gpu_)?lesson\((\S+) ([^)]*)\)", text, re.MULTILINE):
        idea, folder = (re.search(rf"{word} (\S+)", words) for word in ("IDEA", "FOLDER"))
        if idea:
            yield LESSONS / lesson / (folder[1] if folder else "") / idea[1]


def outside_holes(exercise):
    """The texts before, between and after the holes, and the names of the holes."""
    pieces = re.split(r'^ *// Exercise: .*\n(?:^ *// .*\n)*^ *still_empty\("(.+)"\);\n',
                      exercise.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return pieces[::2], pieces[1::2]


found = list(ideas())
for idea in found:
    name = idea.relative_to(LESSONS)
    code = [line for line in map(str.strip, lines(idea)) if line and not line.startswith("//")]
    expect(len(code) <= CODE_LINES, f"{name} has {len(code)} lines of code, at most {CODE_LINES}")
    expect(not any(re.match(r'#include ".*\bcommon/', line) for line in code), f"{name} includes nothing of common")
    exercise = idea.parent / "exercise.hpp"
    if exercise.exists():
        kept, holes = outside_holes(exercise)
        expect(holes, f"{name}: its exercise has holes: {', '.join(holes)}")
        expect(re.fullmatch(".+".join(map(re.escape, kept)), idea.read_text(encoding="utf-8"), re.DOTALL),
               f"{name} is its exercise outside the holes")
    for mutant in sorted((idea.parent / "mutants").glob("*.hpp")):
        gone, new = changed(idea, mutant)
        expect(max(gone, new) <= 3, f"mutants/{mutant.name} differs from {name} in {max(gone, new)} lines, at most 3")

for kernel in sorted(LESSONS.glob("*/exercises/*.cu")):
    text = kernel.read_text(encoding="utf-8")
    begins, ends = text.count("// Exercise: "), re.findall(r"// Exercise: .*\n(?: *//.*\n)*(?:(?! *//).*\n)+ *// End of `.+`\n", text)
    expect(begins == len(ends) > 0, f"{kernel.name} has {begins} holes")
    expect(40 <= text.count("\n") <= 120, f"{kernel.name} has {text.count(chr(10))} lines, 40 to 120")

blocking, overlapped = (LESSONS / lesson / "ring.hpp" for lesson in ("05_blocking_ring", "06_overlapped_ring"))
expect(blocking in found and overlapped in found, "lessons 05 and 06 have the idea ring.hpp")
difference = sum(changed(blocking, overlapped))
expect(difference <= 40, f"lessons 05 and 06 differ in {difference} lines, at most 40")

one_file = lines(LESSONS / "00_attention/ring_attention.cpp")
expect(len(one_file) <= 100, f"ring_attention.cpp has {len(one_file)} lines, at most 100")
included = [line for line in one_file if line.startswith("#include")]
expect(included and all(re.fullmatch(r"#include <(mpi\.h|Eigen/Dense|[a-z]+)>", line) for line in included),
       "ring_attention.cpp includes nothing of ours")
sys.exit(1 if failures else 0)
