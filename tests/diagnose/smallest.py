"""For every mutant of the lessons and of src/mistakes: how few ranks and tokens show it, and the weakest check. Those of
the lessons are run; of those of src/mistakes, the simulator of `diagnose` says it.

smallest.py           runs them all, and writes the table of docs/mistakes.md (about ten minutes)
smallest.py --check   runs the first two mutants of each lesson that two ranks show, with as few tokens as the table
                      says: a check must fail; and every mutant must have its row
smallest.py --check long   runs them all, and compares
"""

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys

import tables
import trials  # noqa: F401: the path of the package
import numpy as np
from ring_attention_diagnose.problem import ARRAYS
from tables import BUILD, SOURCE

PAGE = SOURCE / "docs/mistakes.md"
MPIRUN = os.environ.get("MPIRUN", str(BUILD / "mpirun"))
MARKER = "smallest:begin, by tests/diagnose/smallest.py"
SIZES = (24, 5, 61)  # tokens with which a mutant is looked for on so many ranks
MOST_RANKS = 4
MOST_TOKENS = 8  # of a rank, in the simulator
# What a check needs to know, from the least on. The first that fits counts.
STRENGTH = (
    r"hops|bytes|messages|reads|one pass|fullest|the pairs are",  # a count
    r"finite|sums to 1|is the sum|heavier|random splits|mod N|Megatron|its own value",  # what every result must be
    r"\bout\b|\bp\b|attention|softmax|states|merge|Eigen",  # the right results
    r"lse|loss",
    r"dQ|dK|dV|gradient|all five",
    r"",
)
ON_A_GPU = "lesson.{}.emulated"  # the test that runs a mutant of a GPU lesson
GPU = {"03": "03_blockwise_attention_cuda", "07": "07_backward_cuda", "11": "11_tensor_cores"}


def strength(check):
    if re.search(
        "bit for bit|the bits|same bits|, too$|changes no bit", check
    ):  # only another right program knows them
        return len(STRENGTH)
    return next(i for i, pattern in enumerate(STRENGTH) if re.search(pattern, check))


class Lesson:
    """The program of a lesson, which any number of ranks can run."""

    def __init__(self, folder):
        self.number, self.program = folder.name[:2], BUILD / "lessons" / folder.name
        text = (folder / "main.cpp").read_text(encoding="utf-8")
        self.ranks = range(1, MOST_RANKS + 1) if "mpi_main(" in text else (0,)
        usage = subprocess.run([self.program, "--help"], capture_output=True, text=True, check=True).stdout
        self.sizes = next((flag for flag in ("--seq", "--length") if f" {flag} " in usage), None)
        words = re.search(r"--mutant WORD .*?One of none, ([a-z0-9, -]+) \(default none\)", " ".join(usage.split()))
        self.mutants = [word for word in words[1].split(", ") if not word.startswith("mystery-")] if words else []
        self.quick = ["--train", "none"] if " --train " in usage else []
        self.quick += ["--tile", "4"] if " --tile " in usage else []  # a tile of fewer tokens than most sizes

    def failing(self, mutant, ranks, tokens):
        """The checks that fail; None when the lesson refuses that number of tokens, or needs a GPU."""
        size = [self.sizes, str(tokens)] if tokens else []
        launch = [MPIRUN, "-n", str(ranks)] if ranks else []
        command = [*launch, self.program, "--json", "--mutant", mutant, *self.quick, *size]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, check=False)
        if done.returncode not in (0, 1):
            return None
        report = json.loads(done.stdout)
        return None if "skipped" in report else [check["what"] for check in report["checks"] if not check["ok"]]

    def smallest(self, mutant):
        """(ranks, tokens, check); None when none of these shows it, or it does not run."""
        for ranks in self.ranks:
            seen = {tokens: self.failing(mutant, ranks, tokens) or [] for tokens in (SIZES if self.sizes else (0,))}
            if not any(seen.values()):
                continue
            fewest = 0
            for tokens in range(1, max(SIZES) + 1) if self.sizes else ():
                seen[tokens] = seen.get(tokens) or self.failing(mutant, ranks, tokens) or []
                if seen[tokens]:
                    fewest = tokens
                    break
            return ranks, fewest, min((check for checks in seen.values() for check in checks), key=strength)
        return None


def lessons():
    """Those for which the build has a program: without CUDA, lesson 11 has none."""
    folders = [main.parent for main in sorted((SOURCE / "lessons").glob("[0-9]*/main.cpp"))]
    left_out = (BUILD / "lessons/left_out.txt").read_text(encoding="utf-8").split()
    return [Lesson(folder) for folder in folders if folder.name not in left_out]


def of_lessons(wanted=lambda mutant: True):
    """{mutant: (ranks, tokens, check) as text}"""
    found = {}
    for lesson in lessons():
        for mutant in lesson.mutants:
            name = f"lesson {lesson.number} {mutant}"
            if not wanted(name):
                continue
            if row := lesson.smallest(mutant):
                found[name] = tuple(str(cell) if cell else "-" for cell in row)
                print(name, *found[name], sep=" | ", flush=True)
    return found


def shortened(case, tokens):
    """A case with other tokens."""
    documents = case.documents and (0, (tokens + 2) // 3, (2 * tokens + 2) // 3, tokens)
    return dataclasses.replace(case, tokens=tokens, documents=documents, window=case.window and max(1, min(case.window, tokens // 2)))


def shown_by(mistake, problem, number):
    """The weakest check of a simulated ring that fails, with a number that is lower for a weaker check; or None."""
    from ring_attention_diagnose.search import Evidence, Explanation
    from ring_attention_diagnose.ring import simulated

    def run(of):
        rules = [Explanation(mistakes if wrong else ()).rules() for mistakes, wrong in (
            ((mistake,), mistake.in_forward), ((mistake,), mistake.in_backward))]
        return Evidence(of, simulated(of, "float32", *rules))

    found, name = run(problem), problem.case.name
    finite = {"out": np.isfinite, "lse": lambda x: ~np.isnan(x) & (x < np.inf)}
    if not all(finite.get(array, np.isfinite)(x).all() for array, x in found.got.items()):
        return number, f"all numbers are finite; {name}"
    wrong = [array for array in ARRAYS if array in found.got and not found.is_right((array,), "float32")]
    if "out" in wrong and not problem.case.sinks:
        ones = run(problem.given({"v": np.ones_like(problem.v)}))
        if not ones.is_right(("out",), "float32"):
            return 20 + number, f"V = 1 gives out = 1; {name}"
    return (40 + 20 * ARRAYS.index(wrong[0]) + number, f"{wrong[0]}; {name}") if wrong else None


def of_rings():
    """The mistakes of src/mistakes, by the simulator of `diagnose`: {mutant: (ranks, tokens, check) as text}"""
    from ring_attention_diagnose.mistakes import MISTAKES
    from ring_attention_diagnose.placement import PLACEMENTS, Job
    from ring_attention_diagnose.problem import Problem, ladder

    def smallest(mistake):
        for ranks, placement in itertools.product(range(1, MOST_RANKS + 1), PLACEMENTS):
            unit, seen = ranks * (1 + (placement == "zigzag")), {}
            cases = [case for case in ladder(Job(ranks, placement)) if not case.padding and case.name != "uneven"]
            for tokens in range(unit, MOST_TOKENS * ranks + 1, unit):
                problems = [Problem(shortened(case, tokens), Job(ranks, placement), 1) for case in cases]
                if checks := [*filter(None, (shown_by(mistake, one, i) for i, one in enumerate(problems)))]:
                    seen[tokens] = min(checks)
            if seen:
                return str(ranks), str(min(seen)), min(seen.values())[1]
        return "-", "-", "none of these"

    return {mutant: smallest(MISTAKES[mutant.split()[1]]) for mutant in tables.ring_mutants()}


def of_planted():
    """The mistakes that tests/diagnose/planted.py makes: by the arrays that the program `diagnose` compares."""
    import planted_test

    smallest = {mutant: planted_test.smallest(mutant.split()[1], MOST_RANKS) for mutant in tables.planted_mutants()}
    return {mutant: (ranks, "-", check) for mutant, (ranks, check) in smallest.items()}


def rows(found):
    """A row for each mutant of the list, in its order."""
    for entry in tables.mistakes() + tables.mistakes(unseen=True):
        for mutant in tables.mutants_of(entry):
            row = found.get(mutant)
            if row is None and mutant.startswith("lesson"):
                row = ("-", "-", f"on a GPU: the test {ON_A_GPU.format(GPU[mutant.split()[1]])}")
            if row is None and mutant.startswith("tests/mutants.tsv"):
                row = ("-", "-", f"the test {tables.edits()[mutant]}")
            if row is None and mutant.startswith("tests/protocols"):
                row = ("3", "-", "protocols.spin, an assertion: every order of events")
            if row is None and mutant in tables.loss_mutants():
                row = ("-", "-", "the test diagnose.decoding_and_losses")
            if row is None:
                row = ("-", "-", "none of these")
            what = entry["says"] if mutant == tables.mutants_of(entry)[0] else "the same"
            yield (f"`{entry['id']}`", what, mutant, *row)


def table(found):
    return tables.table(
        ("mistake", "what is wrong", "code that makes it", "ranks", "tokens", "weakest check that shows it"),
        rows(found),
    )


def of_page(text):
    """{mutant: (ranks, tokens, check)} as the page has it."""
    body = text.split(MARKER)[1].split("smallest:end")[0]
    cells = [line.strip("| ").replace("\\|", "|").split(" | ") for line in body.splitlines() if line.startswith("| `")]
    return {row[2]: tuple(row[3:6]) for row in cells}


def check_part(page):
    complaints = []
    known = {
        mutant for entry in tables.mistakes() + tables.mistakes(unseen=True) for mutant in tables.mutants_of(entry)
    }
    if known != set(page):
        return [f"docs/mistakes.md and mistakes.tsv differ in {known ^ set(page)}: python3 tests/diagnose/smallest.py"]
    for lesson in lessons():
        tokens_of = {mutant: page[f"lesson {lesson.number} {mutant}"] for mutant in lesson.mutants}
        on_two = [(mutant, tokens) for mutant, (ranks, tokens, _) in tokens_of.items() if ranks == "2"]
        for mutant, tokens in on_two[:2]:
            if not lesson.failing(mutant, 2, int(tokens) if tokens != "-" else 0):
                complaints.append(f"lesson {lesson.number} {mutant} passes on 2 ranks with {tokens} tokens")
    return complaints


def main():
    text = PAGE.read_text(encoding="utf-8")
    if sys.argv[1:] == ["--check"]:
        complaints = check_part(of_page(text))
    else:
        new = table({**of_lessons(), **of_rings(), **of_planted()})
        begin, end = text.split(f"<!-- {MARKER} -->")[0], text.split("<!-- smallest:end -->")[1]
        page = f"{begin}<!-- {MARKER} -->\n{new}\n<!-- smallest:end -->{end}"
        complaints = []
        if sys.argv[1:2] == ["--check"]:
            complaints = [] if page == text else ["docs/mistakes.md is out of date: python3 tests/diagnose/smallest.py"]
        else:
            PAGE.write_text(page, encoding="utf-8")
    print("\n".join(complaints) or "as docs/mistakes.md says")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
