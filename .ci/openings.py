#!/usr/bin/env python3
"""Lists the comments of src that begin without their noun, such as "That of the constructor."

    python3 .ci/openings.py [FOLDER]

A comment is a run of lines `///`, `//` or `#`, a comment behind code, or a docstring. Exit code 0: none begins with one
of OPENINGS; 1: some do.
"""
import pathlib
import re
import sys

OPENINGS = ["Of", "That of", "Those of", "It", "The same", "Both"]
NAMES = ["*.hpp", "*.cpp", "*.cuh", "*.cu", "*.py", "*.pyi", "*.cmake", "CMakeLists.txt", "*.in", "*.sh"]
COMMENT = re.compile(r'^(?P<code>.*?)(?P<mark>///?<?|#|"""|/\*\*)\s*(?P<text>\S.*)?$')
BEGINS = re.compile(rf"(?:{'|'.join(OPENINGS)})\b")


def without_noun(lines):
    """The lines, with their numbers, on which such a comment begins."""
    inside = False  # a run of comment lines
    for number, line in enumerate(lines, 1):
        comment = COMMENT.match(line)
        goes_on = inside and comment and not comment["code"].strip() and comment["mark"] != '"""'
        if comment and not goes_on and BEGINS.match(comment["text"] or ""):
            yield number, line.strip()
        inside = bool(comment) and not comment["code"].strip() and bool(comment["text"])


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent / "src")
    found = 0
    for path in sorted(path for name in NAMES for path in root.rglob(name)):
        for number, line in without_noun(path.read_text().splitlines()):
            print(f"{path.relative_to(root.parent)}:{number}: a comment begins without its noun: {line}")
            found += 1
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
