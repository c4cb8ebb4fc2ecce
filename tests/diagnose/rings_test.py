"""Rings that really run are called right, or their mistake is named: rings_test.py PROGRAM [RANKS...].

PROGRAM writes what each ring returned (tests/diagnose/answers.hpp); with RANKS it is started on so many ranks of MPI.
"""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

MPIRUN = os.environ.get("MPIRUN", "mpirun")


def answer_in(folder):
    """(mutant, problem, arrays) of one case."""
    import numpy as np
    from ring_attention_diagnose.placement import Job
    from ring_attention_diagnose.problem import ARRAYS, Problem, ladder

    words = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    job = Job(words["ranks"], words["placement"], words["ulysses"])
    case = next(case for case in ladder(job) if case.name == words["case"])
    problem = Problem(dataclasses.replace(case, heads=words["heads"], kv_heads=words["kv_heads"]), job, 1)
    files = {file.stem: np.load(file)[0] for file in folder.glob("*.npy")}
    problem = problem.given({name: files[name] for name in files if name not in ARRAYS})  # lesson 10 has its own
    return words["mutant"], problem, {name: files[name] for name in ARRAYS if name in files}


def complaint(folder, ids):
    """About one ring."""
    import numpy as np
    import trials
    from ring_attention_diagnose.diagnosis import diagnose
    from ring_attention_diagnose.examination import Options

    np.seterr(all="ignore")
    read = [answer_in(case) for case in sorted(folder.iterdir())]
    name = read[0][0]
    found = diagnose([(problem, arrays) for _, problem, arrays in read], Options(pairs=False, lists_not_tested=False))
    forward, backward = trials.pass_text(found.forward), trials.pass_text(found.backward)
    if name == "right":
        return "" if found.right else f"{name}: {forward} / {backward}"
    wrong = backward if found.forward.state in ("right", "absent") else forward
    named = ids.get(name, name) in wrong.split(" | ")
    return "" if named and found.explained else f"{name}: {forward} / {backward}"


def main():
    if importlib.util.find_spec("numpy") is None:
        print(f"skipped: {sys.executable} has no NumPy")
        return 77
    import tables
    import trials  # noqa: F401: the path of the package

    program, ranks = sys.argv[1], sys.argv[2:]
    ids = {mutant: row["id"] for row in tables.mistakes() for mutant in tables.mutants_of(row)}
    wrong, count = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for number in ranks or [""]:
            launch = [MPIRUN, "-n", number] if number else []
            subprocess.run([*launch, program, f"{folder}/{number}"], check=True, timeout=100)
        for ring in sorted(Path(folder).glob("*/*" if ranks else "*")):
            count += 1
            wrong += filter(None, [complaint(ring, ids)])
    print("\n".join(wrong) or f"{count} rings")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
