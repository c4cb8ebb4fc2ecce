"""What `ring_attention_diagnose` says of wrong rings, against verdicts.tsv: a sample of the 8,319 verdicts of the first
classifier, which was a simulator of its own, in C++. It has each mistake of the list in one job, and some of the pairs,
of the mistakes that are not in the list and of those that were taken out of it.

verdicts_test.py       a few trials
verdicts_test.py long  all trials of the table

A verdict agrees when it is the same: a right ring that is called wrong, a mistake that is no longer named, one that gets
another name and an unlisted one that gets a name fail. A part is kind, ranks, placement, type of the
numbers, ranks of Ulysses; margins are the distance from right results and that of each explanation, in tolerances.
"""

import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(SOURCE / "src/python"), str(SOURCE / "tests/diagnose")]
TABLE = SOURCE / "tests/diagnose/verdicts.tsv"
QUICK = {
    "known 3 contiguous float32 1": ("textbook-lse", "steps-short"),
    "known 3 zigzag float32 1": ("bf16-lse", "unguarded-row"),
    "known 4 zigzag float32 2": ("heads-not-returned",),
    "known 3 contiguous bf16 1": ("mask-local (backward only)",),
    "unlisted 3 contiguous float32 1": ("no-delta",),
    "new 3 zigzag float32 1": ("remote tiles see every second key",),
}


def rows_of(path):
    """{part: {trial: the other cells}}. A line "# part" stands before its trials."""
    parts = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("trial\t"):
            continue
        if line.startswith("# "):
            rows = parts.setdefault(line[2:], {})
        else:
            trial, *cells = line.split("\t")
            rows[trial] = cells + [""] * (6 - len(cells))
    return parts


def complaint(wanted, got):
    """Nothing when `got`, (forward, backward, conventions), agrees with a line of the table."""
    for title, want, have in zip(("forward", "backward"), wanted[1:3], got):
        if set(have.split(" | ")) != set(want.split(" | ")):
            return f"{title}: {have}, where the table has {want}"
    return "" if got[2] == wanted[5] else f"conventions: {got[2]}, where the table has {wanted[5]}"


def main():
    if importlib.util.find_spec("numpy") is None:
        print(f"skipped: {sys.executable} has no NumPy")
        return 77
    import trials

    table = rows_of(TABLE)
    parts = table if sys.argv[1:] == ["long"] else QUICK
    wrong, count = 0, 0
    for part, names in parts.items():
        problems = trials.problems_of_part(part)
        everything = {trial.name: trial for trial in trials.trials_of_part(part, names)}
        for name in names:
            found = trials.diagnosis_of(part, everything[name], problems)
            got = trials.pass_text(found.forward), trials.pass_text(found.backward), "; ".join(found.conventions)
            margins = trials.margins_text(found.forward), trials.margins_text(found.backward)
            says, wanted = complaint(table[part][name], got), table[part][name]
            count += 1
            if says:
                wrong += 1
                print(f"{part}: {name}: {says} (margins {' / '.join(margins)}; in the table {' / '.join(wanted[3:5])})")
    print(f"{count} trials, {wrong} differ")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
