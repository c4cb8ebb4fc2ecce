"""How much one reads to understand a part: the files that it includes, each with its .cpp, and their code lines.

`to_read_test.py` prints the table and compares it with the one of docs/architecture.md, whose numbers are bounds. Where
a change needs more, raise the bound there and say why in the commit. `to_read_test.py NAME` lists the files of a row.

So a .cpp of the library has to define what its own header declares, or the files of a row would not be all that there
is to read: the test names the others. (Kernels are behind tables of functions: cpu/kernels.hpp, cuda/kernels.hpp.)

It also compares the page's table of what each part weighs, which `to_read_test.py --write` writes. A number is rounded
to 100 lines and may be off by 100 lines or 5 %, whichever is more, so that few changes have to edit the page. Growth in
many parts at once would then go unseen: the sum of a column may be off by 1 %. Too few lines fail as well, because what
one change removes would hide what a later one adds.
"""

import os
import re
import sys
from pathlib import Path

from includes_test import code_of

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
CODE = {suffix: re.compile(r"^(?!\s*(//.*)?$)", re.MULTILINE) for suffix in (".hpp", ".cpp", ".cu", ".cuh", ".js")}
CODE[".py"] = re.compile(r"^(?!\s*(#.*)?$)", re.MULTILINE)
LONG_STRING = re.compile(r'(^\s*r?)?""".*?"""', re.MULTILINE | re.DOTALL)  # a docstring where it begins a line
COLUMNS = {"src": 0, "docs": 0, "tests": 1, "lessons": 2, "notebooks": 2}
PAGE = ROOT / "docs/architecture.md"
WEIGHT = re.compile(r"(?<=\|---\|---\|---\|---\|\n).*?(?=<!-- weight:end -->)", re.DOTALL)


def find(name, beside=""):
    for folder in (beside, "", "src/", "lessons/", LIBRARY):
        path = os.path.normpath(os.path.join(folder, name))
        if (ROOT / path).is_file():
            return path
    return None  # a header of the system


def code_lines(path):
    """Lines that are neither blank nor a comment nor, in Python, of a docstring."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = LONG_STRING.sub(lambda found: found[0] if found[1] is None else "", text)
    return len(CODE[path.suffix].findall(text))


def part_of(path):
    """`core` for src/ring_attention/core/... and tests/core/..., `lessons 0x` for the first ten lessons."""
    top, *folders, _ = path.relative_to(ROOT).parts
    if folders[:1] == ["ring_attention"]:
        return folders[1] if folders[1:] else "api"
    if folders[1:] == ["ring_attention_diagnose"]:
        return "diagnose"
    if top == "lessons" and folders and folders[0][0].isdigit():
        return f"lessons {folders[0][0]}x"
    return folders[0] if folders else top


def weight():
    """{part: code lines of its source, tests, lessons}"""
    parts, together = {}, [0, 0, 0]
    for top, column in COLUMNS.items():
        for path in (ROOT / top).rglob("*.*"):
            if path.suffix in CODE:
                lines = code_lines(path)
                parts.setdefault(part_of(path), [0, 0, 0])[column] += lines
                together[column] += lines
    return {**dict(sorted(parts.items())), "together": together}


def row_of(part, lines):
    cells = (f"{max(100, round(number, -2)):,}" if number else "" for number in lines)
    return " | ".join((f"| {part}", *cells)) + " |\n"


def check_weight(page):
    """Prints the rows that the page should have and does not; returns how many."""
    said = {}
    for row in WEIGHT.search(page)[0].split("\n")[:-1]:
        part, *numbers = (cell.strip() for cell in row.strip("|").split("|"))
        said[part] = [int(number.replace(",", "") or 0) for number in numbers]
    found, complaints = weight(), 0
    for part in found | said:
        slack = 0.01 if part == "together" else 0.05
        if part not in found or part not in said or any(
                abs(now - then) > max(100, slack * now) for now, then in zip(found[part], said[part])):
            complaints += 1
            row = row_of(part, found[part]) if part in found else f"no row of {part}\n"
            print(f"docs/architecture.md should say (--write writes it): {row}", end="")
    return complaints


def to_read(starts):
    """{file: code lines}"""
    files, left = {}, [find(start) for start in starts]
    while left:
        path = left.pop()
        if path is None or path in files:
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        files[path] = code_lines(ROOT / path)
        left += [find(name, os.path.dirname(path)) for name in re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)]
        if path.endswith(".hpp"):
            left.append(find(path[:-3] + "cpp"))
    return files


def defined_elsewhere(name, code, header):
    """What a .cpp defines and neither its own header nor itself declares. The last two: text without comments."""
    if re.search(r"kernel(_list)?\.cpp$", name):
        return
    begins = r"^(?!template |namespace|using |#|\}|\s|RING_ATTENTION_)"  # at the left margin: not in a function
    for function in re.findall(begins + r".*?((?:\w+(?:<[\w, ]+>)?::)*~?\w+)\(", code, re.MULTILINE):
        owner, _, member = re.sub("<.*?>", "", function).partition("::")
        declared = rf"\b(class|struct) {owner}\b[^;]*{{" if member else rf"\b{owner}\("
        if not re.search(declared, header + (code if member else "")):
            yield f"{name} defines {function}, which its own header does not declare"


def check_definitions():
    """Prints what defined_elsewhere() finds in the library; returns how many."""
    must_fail = list(defined_elsewhere("a.cpp", "int f(int x) {\nT<U>::T(int x) {\nint main() {\n", "int main();"))
    found = [] if len(must_fail) == 2 else [f"the rule about definitions is dead: {must_fail}"]
    for path in sorted((ROOT / LIBRARY).rglob("*.cpp")):
        named = re.sub(r"^namespace \{$.*?^\}  // namespace$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        headers = (path.with_suffix(suffix) for suffix in (".hpp", ".cuh"))
        header = "".join(code_of(file.read_text(encoding="utf-8")) for file in headers if file.is_file())
        found += defined_elsewhere(path.relative_to(ROOT).as_posix(), code_of(named), header)
    print("".join(line + "\n" for line in found), end="")
    return len(found)


def main():
    page = PAGE.read_text(encoding="utf-8")
    if sys.argv[1:] == ["--write"]:
        rows = "".join(row_of(*row) for row in weight().items())
        PAGE.write_text(WEIGHT.sub(rows, page), encoding="utf-8")
        return 0
    if len(sys.argv) > 1:
        for path, lines in sorted(to_read(ROWS[sys.argv[1]]).items()):
            print(f"{lines:5} {path}")
        return 0
    complaints = check_weight(page) + check_definitions()
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
