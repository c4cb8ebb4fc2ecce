"""The generated parts of docs/diagnose.md and docs/sources.md, from src/python/ring_attention_diagnose/mistakes.tsv.

tables.py                 writes the tables of mistakes and of public reports
tables.py --check         writes nothing; fails when a table is out of date, when a mutant that a line names is gone or
                          is not run, when no line names a mutant, or when docs/sources.md and the list disagree
"""

import csv
import os
import re
import sys
from pathlib import Path

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("RING_ATTENTION_BUILD", SOURCE / "build/release")).resolve()
PAGE = SOURCE / "docs/diagnose.md"
SOURCES = SOURCE / "docs/sources.md"
LIST = SOURCE / "src/python/ring_attention_diagnose/mistakes.tsv"


def mistakes(unseen=False):
    """Those that results of attention show, or those that they do not."""
    with open(LIST, encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [row for row in rows if (row["phase"] == "unseen") == unseen]


def mutants_of(row):
    return row["mutant"].split(", ") if row["mutant"] else []


def lesson_link(number):
    found = sorted((SOURCE / "lessons").glob(f"{number}_*")) if number else []
    return f"[{number}](../lessons/{found[0].name}/README.md)" if found else ""


REPORT = re.compile(r"([\w.-]+/[\w.-]+)(?:(#|/pull/)(\d+))?")


def source_link(source):
    """`owner/name#7` as a link to the issue, `owner/name/pull/7` to the pull request, `owner/name` to the repository."""

    def link(match):
        repository, kind, number = match.groups()
        name, address = repository.split("/")[1], f"https://github.com/{repository}"
        if not number:
            return f"[{name}]({address})"
        if kind == "#":
            return f"[{name} {number}]({address}/issues/{number})"
        return f"[{name} pull request {number}]({address}/pull/{number})"

    return REPORT.sub(link, source)


def table(heading, rows):
    lines = ["| " + " | ".join(heading) + " |", "|---" * len(heading) + "|"]
    return "\n".join(lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows])


def mistakes_table():
    return table(
        ("mistake", "in", "what is wrong", "look at", "lesson", "seen in"),
        (
            (f"`{r['id']}`", r["phase"], r["says"], r["look"], lesson_link(r["lesson"]), source_link(r["source"]))
            for r in mistakes()
        ),
    )


def unseen_table():
    return table(
        ("mistake", "what is wrong", "why no result shows it", "lesson", "seen in"),
        (
            (f"`{r['id']}`", r["says"], r["look"], lesson_link(r["lesson"]), source_link(r["source"]))
            for r in mistakes(unseen=True)
        ),
    )


def reports_table():
    """Public issues and pull requests, by project."""
    rows = []
    for row in mistakes() + mistakes(unseen=True):
        for source in row["source"].split(", "):
            report = REPORT.match(source)
            if report and report[3]:
                rows.append((source_link(source), row["says"], f"`{row['id']}`", lesson_link(row["lesson"])))
    return table(("report", "what is wrong", "mistake", "lesson"), sorted(rows, key=lambda row: row[0].lower()))


def lesson_mutants():
    """`lesson 09 local-mask` and so on: what the lessons' programs offer."""
    shared = dict(re.findall(r'Wrong (\w+)\{\s*"([a-z0-9-]+)"', (SOURCE / "lessons/common/ring_mutants.hpp").read_text(encoding="utf-8")))
    for folder in sorted((SOURCE / "lessons").glob("[0-9]*")):
        for file in [*folder.rglob("main.cpp"), folder / "part.hpp", folder / "mistakes.hpp"]:
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            for block in re.findall(r"(?:offer_mutants\(\{|\bmutants\{|mistakes?\{)(.*?);", text, re.DOTALL):
                for name in re.findall(r"\{\s*(?:Mistake::\w+,\s*)?\"([a-z0-9-]+)\",\s*\"", "{" + block):
                    yield f"lesson {folder.name[:2]} {name}"
                yield from (f"lesson {folder.name[:2]} {shared[word]}" for word in re.findall(r"\w+", block) if word in shared)


def ring_mutants():
    """`src/mistakes mask-local` and so on: the rows of ring_mistakes(), which tests/diagnose/rings_test.py runs."""
    text = (SOURCE / "src/mistakes/ring_mistakes.hpp").read_text(encoding="utf-8")
    yield from (f"src/mistakes {name}" for name in re.findall(r'\{\.id = "([\w-]+)"', text))


def edits():
    """`tests/mutants.tsv ring-a-hop-too-many` and so on: edits of the library, each with the test that fails: {name: test}"""
    with open(SOURCE / "tests/mutants.tsv", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return {f"tests/mutants.tsv {row['name']}": row["test"] for row in rows}


def planted_mutants():
    """`tests/diagnose dv-without-l` and so on: the ids that the trials of planted_test.py have."""
    text = (SOURCE / "tests/diagnose/planted_test.py").read_text(encoding="utf-8")
    yield from (f"tests/diagnose {name}" for name in dict.fromkeys(re.findall(r'^    \("([\w-]+)", [A-Z]+,', text, re.M)))


def loss_mutants():
    """`tests/diagnose no-labels` and so on: the jobs of decoding_and_losses_test.py, each in a test that names its id."""
    text = (SOURCE / "tests/diagnose/decoding_and_losses_test.py").read_text(encoding="utf-8")
    yield from (f"tests/diagnose {name}" for name in re.findall(r'"""Plants ([\w-]+):', text))


def complaints_of_mutants():
    """Those that a line names and that are nowhere, or that no line names."""
    offered, listed, of_library = {*lesson_mutants(), *ring_mutants(), *planted_mutants(), *loss_mutants()}, {}, edits()
    for row in mistakes() + mistakes(unseen=True):
        for mutant in mutants_of(row):
            listed[mutant] = row
    models = "".join(file.read_text(encoding="utf-8") for file in (SOURCE / "tests/protocols").glob("*.pml"))
    for mutant in listed:
        known = mutant.split()[1] in models if mutant.startswith("tests/protocols ") else mutant in offered or mutant in of_library
        if not known:
            yield f"{listed[mutant]['id']}: there is no {mutant}"
    yield from (f"mistakes.tsv does not have {mutant}" for mutant in sorted(offered - set(listed)))


def complaints_of_sources():
    """A row of docs/sources.md names mistakes, as in diagnose: `no-max`; the list names the row's text or project."""
    rows = {row["id"]: row for row in mistakes() + mistakes(unseen=True)}
    by_hand = SOURCES.read_text(encoding="utf-8").split("<!-- reports:begin")[0]
    named = set()
    for line in by_hand.splitlines():
        cells = line.split("|")
        for ids in re.findall(r"diagnose: ((?:`[\w-]+`(?:, )?)+)", line):
            for name in re.findall(r"`([\w-]+)`", ids):
                if name not in rows:
                    yield f"docs/sources.md: the list has no {name}"
                    continue
                project = re.search(r"github.com/([\w.-]+/[\w.-]+)", cells[1])
                if project and project[1] not in rows[name]["source"]:
                    yield f"docs/sources.md: mistakes.tsv does not name {project[1]} as a source of {name}"
                for text in re.findall(r"\b[A-E]\b", cells[1]) or [None]:
                    named.add((name, text))
                    if text and f"text {text}" not in rows[name]["source"]:
                        yield f"docs/sources.md: mistakes.tsv does not name text {text} as a source of {name}"
    for name, row in rows.items():
        for text in re.findall(r"text ([A-E])", row["source"]):
            if (name, text) not in named:
                yield f"docs/sources.md: no row of text {text} names {name}"


def replaced(text, name, new):
    begin, end = f"<!-- {name}:begin, by tests/diagnose/tables.py -->", f"<!-- {name}:end -->"
    before, rest = text.split(begin)
    return before + begin + "\n" + new + "\n" + end + rest.split(end)[1]


def main():
    old = {page: page.read_text(encoding="utf-8") for page in (PAGE, SOURCES)}
    page = old[PAGE]
    for name, table_of_name in (("mistakes", mistakes_table()), ("unseen", unseen_table())):
        page = replaced(page, name, table_of_name)
    new = {PAGE: page, SOURCES: replaced(old[SOURCES], "reports", reports_table())}
    if sys.argv[1:] == ["--check"]:
        complaints = [*complaints_of_mutants(), *complaints_of_sources()]
        complaints += [
            f"{page} is out of date: python3 tests/diagnose/tables.py" for page in new if new[page] != old[page]
        ]
        print(
            "\n".join(complaints)
            or f"{len(mistakes())} mistakes, and {len(mistakes(unseen=True))} that no result shows"
        )
        return 1 if complaints else 0
    for page, text in new.items():
        page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
