"""The ideas of the lessons: they stand alone, they are short, and a pair differs by few lines.

- An idea (IDEA in lessons/CMakeLists.txt) has few lines of code, and includes nothing of lessons/common.
- Lesson 06's ring differs from lesson 05's by at most 40 lines of `diff`.
- Outside its holes an exercise is its idea, line by line. A hole has a name, a hint and lines for the reader to write.
- A kernel of an exercise has 40 to 120 lines.
- The one file of lesson 00 has at most 100 lines, and includes MPI, Eigen and the standard library only.
"""

import difflib
import os
import re
import subprocess
from pathlib import Path

from expect import expect, finish

LESSONS = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2])) / "lessons"
CODE_LINES = 75  # about 60 are meant


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


def expect_holes(idea, holes):
    """The idea has the holes of the list, and outside them its copy with holes is the idea."""
    done = subprocess.run(["awk", "-f", LESSONS / "with_holes.awk", holes, idea], capture_output=True, text=True)
    pieces = re.split(r'^ *// Exercise: .+\n(?:^ *// .*\n)*^ *still_empty\("(.+)"\);\n', done.stdout, flags=re.MULTILINE)
    kept, names = pieces[::2], pieces[1::2]
    listed = re.findall("^hole `(.+?)`", holes.read_text(encoding="utf-8"), re.MULTILINE)
    name = idea.relative_to(LESSONS)
    expect(done.returncode == 0 and listed == names != [], f"{name} has its holes: {', '.join(names)}")
    cut = re.fullmatch("((?:.*\n)+)".join(map(re.escape, kept)), idea.read_text(encoding="utf-8"))
    expect(cut and all(lines.count("{") == lines.count("}") for lines in cut.groups()),
           f"{name} is its exercise outside the holes, which close what they open")


found = list(ideas())
for idea in found:
    name = idea.relative_to(LESSONS)
    code = [line for line in map(str.strip, lines(idea)) if line and not line.startswith("//")]
    expect(len(code) <= CODE_LINES, f"{name} has {len(code)} lines of code, at most {CODE_LINES}")
    expect(not any(re.match(r'#include ".*\bcommon/', line) for line in code), f"{name} includes nothing of common")
    if (idea.parent / "exercise.txt").exists():
        expect_holes(idea, idea.parent / "exercise.txt")

for kernel in sorted(LESSONS.glob("*/exercises/*.cu")):
    expect_holes(kernel, kernel.with_suffix(".txt"))
    expect(40 <= len(lines(kernel)) <= 120, f"{kernel.name} has {len(lines(kernel))} lines, 40 to 120")

blocking, overlapped = (LESSONS / lesson / "ring.hpp" for lesson in ("05_blocking_ring", "06_overlapped_ring"))
expect(blocking in found and overlapped in found, "lessons 05 and 06 have the idea ring.hpp")
difference = sum(changed(blocking, overlapped))
expect(difference <= 40, f"lessons 05 and 06 differ in {difference} lines, at most 40")

one_file = lines(LESSONS / "00_attention/ring_attention.cpp")
expect(len(one_file) <= 100, f"ring_attention.cpp has {len(one_file)} lines, at most 100")
included = [line for line in one_file if line.startswith("#include")]
expect(included and all(re.fullmatch(r"#include <(mpi\.h|Eigen/Dense|[a-z]+)>", line) for line in included),
       "ring_attention.cpp includes nothing of ours")
finish()
