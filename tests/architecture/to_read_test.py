"""How much one reads to understand a part: the files that it includes, each with its .cpp, and their code lines.

`to_read_test.py` prints the table and compares it with the one of docs/architecture.md, whose numbers are bounds. Where
a change needs more, raise the bound there and say why in the commit. `to_read_test.py NAME` lists the files of a row.
"""

import os
import re
import sys
from pathlib import Path

ROOT = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
LIBRARY = "src/ring_attention/"
MPI = LIBRARY + "ring/transports/overlapped.hpp"
ROWS = {
    "the loop": ["ring/forward.hpp"],
    "lesson 05's idea": ["lessons/05_blocking_ring/ring.hpp"],
    "the forward over MPI, readable engine": ["ring/forward.hpp", MPI, "attention/blockwise.hpp"],
    "the forward over MPI, fast engine": ["ring/forward.hpp", MPI, "cpu/engine.hpp", "cpu/forward_kernel.cpp"],
    "the backward over MPI, readable engine": ["ring/backward.hpp", MPI, "attention/backward.hpp"],
    "the backward over MPI, fast engine": ["ring/backward.hpp", MPI, "cpu/backward.hpp", "cpu/backward_kernel.cpp"],
    "`ContextParallel`": ["parallel/context_parallel.hpp"],
    "`ra::forward` and `ra::backward`": ["ring_attention.hpp"],
    "`ring-attention run`": ["src/program/run/command.cpp"],
}
CODE = re.compile(r"^(?!\s*(//.*)?$)", re.MULTILINE)


def find(name, beside=""):
    for folder in (beside, "", "src/", "lessons/", LIBRARY):
        path = os.path.normpath(os.path.join(folder, name))
        if (ROOT / path).is_file():
            return path
    return None  # a header of the system


def to_read(starts):
    """{file: code lines}"""
    files, left = {}, [find(start) for start in starts]
    while left:
        path = left.pop()
        if path is None or path in files:
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        files[path] = len(CODE.findall(text))
        left += [find(name, os.path.dirname(path)) for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)]
        if path.endswith(".hpp"):
            left.append(find(path[:-3] + "cpp"))
    return files


def main():
    if len(sys.argv) > 1:
        for path, lines in sorted(to_read(ROWS[sys.argv[1]]).items()):
            print(f"{lines:5} {path}")
        return 0
    page = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    complaints = 0
    for name, starts in ROWS.items():
        files = to_read(starts)
        found = len(files), sum(files.values())
        row = re.search(rf"^\| {re.escape(name)} \| (\d+) \| ([\d,]+) \|$", page, re.MULTILINE)
        bound = tuple(int(number.replace(",", "")) for number in row.groups()) if row else (0, 0)
        ok = found[0] <= bound[0] and found[1] <= bound[1]
        complaints += not ok
        print(f"| {name} | {found[0]} | {found[1]:,} |" + ("" if ok else f"   more than architecture.md says: {bound}"))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
