"""The generated parts of docs/diagnose.md.

tables.py                 writes the table of mistakes from src/diagnose/mistakes/mistakes.tsv
tables.py confusion       the same, and simulates every mistake, lets it be diagnosed, and counts (ten minutes)
tables.py --check         writes nothing; fails when the table of mistakes is out of date, or a mutant that a line
                          names is gone
"""

import csv
import os
import re
import subprocess
import sys
from pathlib import Path

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", SOURCE / "build/release")).resolve()
PAGE = SOURCE / "docs/diagnose.md"
LIST = SOURCE / "src/diagnose/mistakes/mistakes.tsv"
OUTCOMES = ("named", "group", "convention", "invisible", "unknown", "wrong")


def mistakes():
    with open(LIST, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def lesson_link(number):
    found = sorted((SOURCE / "lessons").glob(f"{number}_*")) if number else []
    return f"[{number}](../lessons/{found[0].name}/README.md)" if found else ""


def source_link(source):
    """`owner/name#7` as a link to the issue, `owner/name` to the repository; the rest as it is."""

    def link(match):
        repository, number = match[1], match[2]
        address = f"https://github.com/{repository}" + (f"/issues/{number}" if number else "")
        return f"[{repository.split('/')[1]}{' ' + number if number else ''}]({address})"

    return re.sub(r"([\w.-]+/[\w.-]+)(?:#(\d+))?", link, source)


def mistakes_table():
    lines = ["| mistake | in | what is wrong | look at | lesson | seen in |", "|---|---|---|---|---|---|"]
    for row in mistakes():
        cells = (
            f"`{row['id']}`",
            row["phase"],
            row["says"],
            row["look"],
            lesson_link(row["lesson"]),
            source_link(row["source"]),
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def confusion(mode, ranks, placement, number_type, ulysses=1, cases=""):
    """Counts by outcome, and the lines of those that were not simply named."""
    command = [BUILD / "tests/diagnose/diagnose_confusion", mode, ranks, placement, number_type, ulysses, cases]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=True)
    lines = [line.split("\t") for line in done.stdout.splitlines() if not line.startswith("#")]
    summary = done.stdout.splitlines()[-1]
    counts = {word: int(count) for word, count in re.findall(r" (\w+) (\d+)(?= |;)", summary.split(":", 1)[1])}
    return counts, lines


def jobs():
    """(ranks, placement, type of the numbers, ranks of Ulysses)"""
    for kind in ("float32", "bf16"):
        for ranks in (3, 4, 2):
            for placement in ("contiguous", "striped", "zigzag"):
                yield ranks, placement, kind, 1
    yield from ((4, "zigzag", "float32", 2), (6, "zigzag", "float32", 2), (3, "contiguous", "float32", 3))


def confusion_tables():
    """How many of the trials went how; and which mistakes do not show, in float32 and in both passes."""
    counted = [
        "| ranks | placement | numbers | " + " | ".join(OUTCOMES) + " |",
        "|---|---|---|" + "---|" * len(OUTCOMES),
    ]
    unseen = {}
    for ranks, placement, kind, ulysses in jobs():
        counts, lines = confusion("known", ranks, placement, kind, ulysses)
        what = f"{ranks}" + (f", U = {ulysses}" if ulysses > 1 else "")
        counted.append(
            f"| {what} | {placement} | {kind} | " + " | ".join(str(counts.get(word, 0)) for word in OUTCOMES) + " |"
        )
        print(counted[-1], flush=True)
        hidden = [name for outcome, name, *_ in lines if outcome == "invisible" and "(" not in name]
        if ranks == 3 and ulysses == 1:
            for name in hidden:
                unseen.setdefault(name, {}).setdefault(kind, []).append(placement)
    lists = ["| mistake | does not show on 3 ranks, float32 | bf16 |", "|---|---|---|"]
    for name, by_kind in unseen.items():
        places = [
            " and ".join(by_kind.get(kind, [])) if len(by_kind.get(kind, [])) < 3 else "all placements"
            for kind in ("float32", "bf16")
        ]
        lists.append(f"| `{name}` | {places[0]} | {places[1]} |")
    return "\n".join(counted), "\n".join(lists)


def replaced(text, name, table):
    begin, end = f"<!-- {name}:begin, by tests/diagnose/tables.py -->", f"<!-- {name}:end -->"
    before, rest = text.split(begin)
    return before + begin + "\n" + table + "\n" + end + rest.split(end)[1]


def missing_mutants():
    """Mutants that a line names and that are nowhere: `lesson 05 step-too-few`, `tests/support Name`."""
    for row in mistakes():
        if not row["mutant"]:
            continue
        place, name = row["mutant"].rsplit(" ", 1)
        folder = f"lessons/{place.split()[1]}_*/**/*.*pp" if place.startswith("lesson") else f"{place}/*.hpp"
        if not any(
            re.search(rf"(\"|struct |class ){name}\b", file.read_text(encoding="utf-8")) for file in SOURCE.glob(folder)
        ):
            yield f"{row['id']}: there is no {row['mutant']}"


def main():
    text = PAGE.read_text(encoding="utf-8")
    new = replaced(text, "mistakes", mistakes_table())
    if sys.argv[1:] == ["--check"]:
        complaints = list(missing_mutants())
        if new != text:
            complaints.append("docs/diagnose.md is out of date: python3 tests/diagnose/tables.py")
        print("\n".join(complaints) or f"{len(mistakes())} mistakes")
        return 1 if complaints else 0
    if sys.argv[1:] == ["confusion"]:
        counted, unseen = confusion_tables()
        new = replaced(replaced(new, "confusion", counted), "invisible", unseen)
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
