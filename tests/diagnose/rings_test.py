"""Rings that really run are called right, or their mistake is named: rings_test.py PROGRAM [long]

PROGRAM (mistaken_rings.cpp) runs each mistake of src/mistakes and saves what the ring returned, in folders as the lessons
write them with --save. Without `long` on contiguous shards, and among the mistakes of src/mistakes.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import tables
import trials
from ring_attention_diagnose.diagnosis import diagnose
from ring_attention_diagnose.examination import Options
from ring_attention_diagnose.files import read_results
from ring_attention_diagnose.layout import submission_of


LONG = sys.argv[2:] == ["long"]
IDS = {mutant.split()[1] for mutant in tables.ring_mutants()} | {"unguarded-backward"}  # as a backward of a NaN lse is


def complaint(folder):
    """About one ring."""
    options = Options(pairs=False, lists_not_tested=False)
    if not LONG:
        options.mistakes = [mistake for mistake in options.mistakes if mistake.id in IDS]
    found = diagnose(submission_of(*read_results(str(folder))).answers, options)
    forward, backward = trials.pass_text(found.forward), trials.pass_text(found.backward)
    right_there = f"mask-as-{folder.parent.name}"
    if folder.name in ("right", right_there):
        named = found.right
    else:
        wrong = backward if found.forward.state == "right" else forward
        named = folder.name in wrong.split(" | ") and found.explained
    return "" if named else f"{folder.parent.name}, {folder.name}: {forward} / {backward}"


np.seterr(all="ignore")
with tempfile.TemporaryDirectory() as temporary:
    subprocess.run([sys.argv[1], temporary, *([] if LONG else ["contiguous"])], check=True, timeout=100)
    rings = sorted(Path(temporary).glob("*/*"))
    complaints = [*filter(None, map(complaint, rings))]
print("\n".join(complaints) or f"{len(rings)} rings")
sys.exit(1 if complaints or not rings else 0)
