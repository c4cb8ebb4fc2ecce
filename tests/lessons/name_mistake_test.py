"""What the arrays that the lessons save say: each mutant's mistake is named, as the judge of an exercise names a learner's, and
a right program is right.

Without `long` one mutant of a lesson is tried, and not lesson 12, whose program takes seconds.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(os.environ.get("RING_ATTENTION_SOURCE", Path(__file__).resolve().parents[2]))
sys.path[:0] = [str(SOURCE / "lessons"), str(SOURCE / "tests/diagnose")]
import tables
from name_mistake import Options, answers_in, diagnose
from tables import BUILD

MPIRUN = os.environ.get("MPIRUN", str(BUILD / "mpirun"))
LONG = sys.argv[1:] == ["long"]
SMALL = "--seq 24 --dim 16"  # as exercise.sh has it
PROGRAMS = {  # ranks, flags
    "00_attention": (1, ""),
    "03_blockwise_attention": (1, f"{SMALL} --tile 8"),
    "05_blocking_ring": (4, SMALL),
    "06_overlapped_ring": (4, SMALL),
    "07_backward": (1, f"{SMALL} --tile 8"),
    "08_ring_backward": (4, SMALL),
    "09_load_balance": (4, SMALL),
    "10_ulysses_and_hybrid": (4, "--seq 32 --dim 16 --heads 4"),
    "12_masks_bias_dropout": (4, "--seq 24"),
}
NOT_SHOWN = ("lesson 06 early-advance",  # a race
             "lesson 10 world-placement", "lesson 10 swapped-axes",  # the arrays are saved where the mistake has put them
             "lesson 10 interleaved-heads",  # this deal breaks more than the groups: the name is only near
             "lesson 12 no-offset")  # has as many queries as keys


def mutants_of(program):
    """{mutant: what is named}; of a right ring, nothing"""
    of_lesson = {mutant: row["says"] for row in tables.mistakes() for mutant in tables.mutants_of(row)
                 if mutant.startswith(f"lesson {program[:2]} ") and mutant not in NOT_SHOWN}
    return {**{mutant.split()[2]: says for mutant, says in of_lesson.items()}, "none": ""}


def named(program, ranks, flags, mutant):
    with tempfile.TemporaryDirectory() as folder:
        command = [MPIRUN, "-n", str(ranks), BUILD / "lessons" / program, *flags.split(), "--mutant", mutant, "--save", folder]
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=100)
        command = [sys.executable, SOURCE / "lessons/name_mistake.py", folder]
        done = subprocess.run(command, capture_output=True, text=True)
        said, answers = (done.stdout + done.stderr).strip(), [*answers_in(folder)]
        if mutant == "none" and not all(diagnose(one, Options(pairs=False, lists_not_tested=False)).right for one in answers):
            said += "a right ring is called wrong"
        return answers, said


wrong = 0
for name, (number, options) in PROGRAMS.items():
    for mistake, says in list(mutants_of(name).items())[: None if LONG else not name.startswith("12")]:
        saved, said = named(name, number, options, mistake)
        holds = saved and (" match a ring with this mistake: " in said and says in said if says else not said)
        print(f"{'ok  ' if holds else 'FAIL'} {name} {mistake}: {said}", flush=True)
        wrong += not holds
sys.exit(1 if wrong else 0)
