"""Each number of a Markdown table in a lesson's page or in docs is one that a program prints: as text, or with --json.

A cell counts if it is numbers with units and nothing else. Integers below 100 do not, nor times, which differ from run to run.
Before a table <!-- output of: COMMAND --> names a command that the page does not show, and <!-- not printed: WHY --> says who
else vouches for it: a derivation, or a measurement. A table between <!-- NAME:begin, by SCRIPT --> and its end is that script's.
In docs a table with such numbers has one of these comments, and WHY names the date of a measurement or a file that checks it.

Usage: tables_test.py [docs] [page ...]
"""

import json
import math
import re
import sys
import tempfile
from pathlib import Path

from pages_test import NUMBER, SOURCE, Outputs, commands_on

DOCS = sorted(SOURCE.glob("docs/*.md"))
PAGES = DOCS + sorted(SOURCE.glob("lessons/*/*.md"))
ELSEWHERE = ["lessons/11_tensor_cores/ESTIMATES.md"]  # of GPUs: tests/benchmarks/cuda and tests/ptx
TABLE = re.compile(r"(?:^<!-- (?P<mark>not printed|output of): (?P<words>.+) -->\n\n?)?(?P<rows>^\|.*\n(?:^\|.*\n?)+)", re.M)
HIDDEN = re.compile(r"```.*?```|<!-- (\w+):begin,.*?<!-- \1:end -->", re.S)
UNITS = re.compile(r"\b(?:[KMGT]i?B|bytes|B|times|GFLOP/s|TFLOP/s|FLOP/s)\b|%|±")
VOUCHES = re.compile(r"\b20\d\d-\d\d|\bderived\b|\b(?P<file>\w+(?:/\w+)+\.\w+)")
TIME = re.compile(r"\d (?:ns|us|ms|s|min|h)\b|/ ?\d.* ms")
POWER = re.compile(r"(-?[\d.]+) *\\cdot *10\^\{?(-?\d+)\}?")


def cells(row):
    return [cell.strip() for cell in row.strip().strip("|").split("|")]


def numbers_of(cell):
    """The numbers of a cell that has nothing else."""
    if TIME.search(cell):
        return []
    text = POWER.sub(r"\1e\2", cell.replace("$", "").replace("−", "-"))
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    found = NUMBER.findall(text)
    rest = UNITS.sub("", NUMBER.sub("", text))
    if not found or re.search(r"[^\s/,;:+x()-]", rest):
        return []
    return [word for word in found if "." in word or "e" in word or abs(int(word)) >= 100]


def is_printed(word, printed):
    """To the digits of the table, or ten or a hundred times that (a share in %), or in KiB, MiB and so on."""
    digits = len(word.split("e")[0].replace("-", "").replace(".", "").lstrip("0"))
    value = float(word)
    slack = abs(value) * 0.5 * 10.0 ** (1 - digits) * 1.001 if "." in word or "e" in word else 0
    return any(abs(value - number * scale) <= max(slack, 1e-12 * abs(value))
               for scale in (1, 100, 1 / 2**10, 1 / 2**20, 1 / 2**30) for number in printed)


def figures(value):
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, (int, float)):
        return [value]
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [number for one in inside for number in figures(one)]


def printed_by(commands, outputs):
    """All numbers of the commands, and of the lessons among them with --json."""
    found = set()
    for command in commands:
        lines = list(outputs.of(command))
        found.update(float(word) for line in lines for word in NUMBER.findall(line))
        if "/lessons/" in command and ";" not in command:
            text = "\n".join(outputs.of(command + " --json"))
            if text.startswith("{"):
                found.update(figures(json.JSONDecoder().raw_decode(text)[0]))
    return [number for number in found if math.isfinite(number)]


def unmarked(page):
    """The tables of a page of docs of which nothing says where their numbers come from."""
    text = page.read_text(encoding="utf-8")
    for table in TABLE.finditer(HIDDEN.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)):
        found = [word for row in table["rows"].splitlines()[2:] for cell in cells(row) for word in numbers_of(cell)]
        vouches = VOUCHES.search(table["words"] or "")
        known = table["mark"] == "output of" or vouches and (not vouches["file"] or (SOURCE / vouches["file"]).exists())
        if found and not known:
            line = text[:table.start("rows")].count("\n") + 1
            yield f"{page.relative_to(SOURCE)}:{line}: where does {found[0]} come from? (a comment before the table says it)"


def check(page, outputs):
    text, wrong, checked = page.read_text(encoding="utf-8"), [], 0
    for table in TABLE.finditer(HIDDEN.sub(lambda block: re.sub(r"[^\n]", " ", block[0]), text)):
        if table["mark"] == "not printed" or not table["mark"] and page in DOCS:
            continue
        commands, printed = [table["words"]] if table["mark"] else commands_on(page), None
        for row in table["rows"].splitlines()[2:]:
            for cell in cells(row):
                for word in numbers_of(cell):
                    checked += 1
                    printed = printed or printed_by(commands, outputs)
                    if not is_printed(word, printed):
                        line = text[:table.start("rows")].count("\n") + 1 + table["rows"].splitlines().index(row)
                        wrong.append(f"{page.relative_to(SOURCE)}:{line}: no command prints {word} of `{cell}`")
    return checked, wrong


def main():
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        outputs = Outputs(folder)
        words = [word for word in sys.argv[1:] if word != "long"]
        for page in DOCS if words == ["docs"] else [Path(word).resolve() for word in words] or PAGES:
            if str(page.relative_to(SOURCE)) in ELSEWHERE:
                continue
            of_page = list(unmarked(page)) if page in DOCS else []
            checked, of_page = (0, of_page) if of_page else check(page, outputs)
            if checked:
                print(f"{page.relative_to(SOURCE)}: {checked - len(of_page)} of {checked} numbers are printed", flush=True)
            print("".join(f"    {line}\n" for line in of_page), end="", flush=True)
            wrong += of_page
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
